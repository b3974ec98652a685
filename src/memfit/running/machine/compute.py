"""The speeds of a machine that decide what a compiled forward pass keeps: measured once, rounded, and kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from memfit.errors import MemfitError
from memfit.files import load_machine
from memfit.files.document import read_document, write_document
from memfit.machine import Machine
from memfit.planning.partition import Speeds
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from memfit.running.machine.measure import keep_machine, machine_file, measure_machine
from memfit.running.machine.measure_cuda import cuda_machine

_KIND, _VERSION = "speeds", 1
_FIELDS = ("flops", "memory_bytes_per_s", "tier_bytes_per_s")
_WIDTH = 1024  # of the product's matrices
_COUNT = 1 << 23  # floats that are added up
_COPIED = 1 << 26  # bytes
_REPEATS = 5


def speeds_to(tier: TierSpec, device: torch.device) -> Speeds:
    """Return the speeds of `device` and of copies to `tier`; about four seconds the first time.

    They are kept, so that all processes of this machine decide alike. Not to be called inside a session.
    Raises TierError if a copy fails.
    """
    path = speeds_file(tier, device)
    with suppress(MemfitError):  # none yet, or an unreadable one
        fields = read_document(path, _KIND, _VERSION)
        return Speeds(*(fields.number(name) for name in _FIELDS))
    speeds = Speeds(*_compute(device), _round_trip(_machine(tier, device))).rounded()
    with suppress(MemfitError, OSError):  # they are measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_document(path, _KIND, _VERSION, dict(zip(_FIELDS, speeds.as_tuple(), strict=True)))
    return speeds


def speeds_file(tier: TierSpec, device: torch.device) -> Path:
    """Return the path of what is kept; threads count, since they are what computes."""
    threads = f"-{torch.get_num_threads()}" if device.type == "cpu" else ""
    return engine.cache_folder() / f"speeds-{device.type}{threads}-{tier.kind}.json"


def _machine(tier: TierSpec, device: torch.device) -> Machine:
    if device.type == "cuda" and (machine := cuda_machine(device)) is not None:
        return machine
    path = machine_file(tier)
    with suppress(MemfitError):
        return load_machine(path)
    machine = measure_machine(tier)
    with suppress(MemfitError):
        keep_machine(machine, path)
    return machine


def _round_trip(machine: Machine) -> float:
    return 1e6 * _COPIED / (machine.out.copy_us(_COPIED) + machine.into.copy_us(_COPIED))


def _compute(device: torch.device) -> tuple[float, float]:
    square, row = torch.ones(_WIDTH, _WIDTH, device=device), torch.ones(_COUNT, device=device)
    product, total = torch.empty_like(square), torch.empty_like(row)
    flops = 2 * _WIDTH**3 / _least_seconds(lambda: torch.mm(square, square, out=product), device)
    moved = (2 + 1) * row.nbytes / _least_seconds(lambda: torch.add(row, row, out=total), device)
    return flops, moved


def _least_seconds(op: Callable[[], object], device: torch.device) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        op()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return min(seconds() for _ in range(1 + _REPEATS))

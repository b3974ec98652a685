"""The speed of copies between memory and a tier on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from memfit._native import HOST_ALIGNMENT
from memfit.files import save_machine
from memfit.machine import Link, Machine
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from memfit.running.host import host_memory_bytes

_SIZES = tuple(1 << exponent for exponent in range(12, 27, 2))  # 4 KiB to 64 MiB
_REPEATS = 5


def measure_machine(tier: TierSpec, sustained: tuple[float, float] | None = None) -> Machine:
    """Return a machine with the measured links to `tier`; about two seconds.

    `sustained` (bytes/s out and in) is what a disk does once its cache is full: copies as small as these hit the cache
    and only tell the latency. Raises TierError if a copy fails.
    """
    native = engine.load()
    out, into, factors = [], [], []
    for size in _SIZES:
        out_s, in_s, out_beside, in_beside = native.measure_tier(tier.kind, tier.folder, size, _REPEATS)
        out.append(1e6 * out_s)
        into.append(1e6 * in_s)
        factors.append(min(out_s / out_beside, in_s / in_beside, 1.0))
    links = Link.levelled(_SIZES, out), Link.levelled(_SIZES, into)
    if sustained is not None:
        links = Link.affine(out[0], 1e9 / sustained[0]), Link.affine(into[0], 1e9 / sustained[1])
    with _busy():
        out_s, in_s, *_ = native.measure_tier(tier.kind, tier.folder, _SIZES[-1], _REPEATS)
    loaded = min(out[-1] / (1e6 * out_s), into[-1] / (1e6 * in_s), 1.0)
    return Machine(
        f"this machine, {tier}",
        *links,
        factors[-1],
        host_memory_bytes(),
        alignment=HOST_ALIGNMENT,
        loaded_factor=loaded,
    )


@contextmanager
def _busy() -> Iterator[None]:
    """Keep torch's threads at work with matrix products, as a training step does."""
    stop, a = threading.Event(), torch.ones(1024, 1024)

    def work() -> None:
        product = torch.empty_like(a)
        while not stop.is_set():
            torch.mm(a, a, out=product)

    thread = threading.Thread(target=work, name="memfit load")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def machine_file(tier: TierSpec) -> Path:
    """Return the path of the measured machine for `tier`."""
    return engine.cache_folder() / f"machine-{tier.kind}.json"


def keep_machine(machine: Machine, path: Path) -> None:
    """Save `machine` in the cache folder, which is made if nothing was built there. Raises InputError."""
    with suppress(OSError):  # the next line says what is wrong with the folder
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    save_machine(machine, path)

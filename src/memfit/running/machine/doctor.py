"""Whether this machine has what memfit needs: versions, compiler, engine, disk."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from memfit._version import __version__
from memfit.errors import MemfitError
from memfit.machine import Machine
from memfit.running import engine
from memfit.running.engine.plans import clear, kept_files, plans_folder
from memfit.running.engine.tiers import TierSpec
from memfit.running.host import is_in_memory
from memfit.running.machine.measure import keep_machine, machine_file, measure_machine
from memfit.running.machine.measure_cuda import cuda_machine_file, measure_cuda
from memfit.units import format_bytes

_OLDEST_TORCH = (2, 11)
_TEST_BYTES = 256 << 20
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `values` are plain numbers for programs."""

    name: str
    ok: bool
    text: str
    values: dict[str, float]


def examine(tier: TierSpec, device: torch.device) -> list[Finding]:
    """Check everything; this builds the engine, times copies and writes 256 MiB to the disk tier's folder."""
    engine_finding = _engine()
    findings = [
        Finding("memfit", True, __version__, {}),
        Finding("python", True, platform.python_version(), {}),
        _torch(),
        _compiler(is_needed=not engine_finding.ok),
        engine_finding,
        *_gpu(device),
        _plans(),
    ]
    sustained = None
    if tier.kind == "disk":
        findings.append(_disk(tier.folder))
        values = findings[-1].values
        sustained = (values["write_bytes_per_s"], values["read_bytes_per_s"]) if values else None
    if not all(finding.ok for finding in findings):
        return findings
    return [*findings, _gpu_link(device) if device.type == "cuda" else _link(tier, sustained)]


def _torch() -> Finding:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    text = torch.__version__ if version >= _OLDEST_TORCH else f"{torch.__version__}: memfit needs torch 2.11 or newer"
    return Finding("torch", version >= _OLDEST_TORCH, text, {})


def _compiler(is_needed: bool) -> Finding:
    problem, text = _compiler_here()
    if not is_needed and problem:
        return Finding("compiler", True, f"{problem}, and none is needed: the engine is there", {})
    return Finding("compiler", not problem, f"{problem}{text}", {})


def _compiler_here() -> tuple[str, str]:
    """Return why there is no C++ compiler that runs, empty if there is one, and the rest of a text about it."""
    command = engine.compiler()
    if not command:
        return "none", ": install g++ (apt-get install g++) or set CXX"
    name = shlex.join(command)
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError as error:
        return f"{name}: {error.strerror}", "; set CXX to one that runs"
    first = done.stdout.splitlines()
    text = f"{name}: {first[0] if first else 'no version'}"
    return ("", text) if done.returncode == 0 else (text, "")


def _engine() -> Finding:
    was_there = engine.cached_library().exists()
    started = time.monotonic()
    try:
        library = engine.library_in_use()
    except MemfitError as error:
        return Finding("engine", False, str(error), {})
    seconds = time.monotonic() - started
    ahead = library == engine.library_built_ahead()
    how = "came with memfit" if ahead else "compiled here before" if was_there else f"compiled here in {seconds:.0f} s"
    return Finding("engine", True, f"{how}: {library}", {"seconds": seconds, "built_ahead": float(ahead)})


def _plans() -> Finding:
    folder = plans_folder()
    if folder is None:
        return Finding("plans", True, "none are kept: MEMFIT_PLAN_CACHE is off", {})
    sizes = [size for _, size in kept_files(folder)]
    text = f"{len(sizes)} kept, {format_bytes(sum(sizes))}, in {folder} (memfit doctor --clear-plans)"
    return Finding("plans", True, text, {"count": len(sizes), "bytes": sum(sizes)})


def clear_plans() -> str:
    """Remove every plan that was kept for later runs; return a sentence about it."""
    folder = plans_folder()
    if folder is None:
        return "no plans are kept: MEMFIT_PLAN_CACHE is off"
    return f"{clear(folder)} plans removed from {folder}"


def _gpu(device: torch.device) -> list[Finding]:
    if device.type != "cuda":
        return []
    about = torch.cuda.get_device_properties(device)
    text = f"{device}: {about.name}, {format_bytes(about.total_memory)}, CUDA {torch.version.cuda}"
    if not engine.has_cuda():
        return [Finding("gpu", False, f"{text}; {engine.NO_CUDA_HEADERS}", {})]
    return [Finding("gpu", True, text, {"memory_bytes": about.total_memory})]


def _gpu_link(device: torch.device) -> Finding:
    return _kept(str(device), measure_cuda(device), cuda_machine_file(device))


def _link(tier: TierSpec, sustained: tuple[float, float] | None) -> Finding:
    """Measure copies to the tier and back, and keep the machine for `memfit plan --machine`."""
    try:
        machine = measure_machine(tier, sustained)
    except MemfitError as error:
        return Finding("link", False, str(error), {})
    return _kept(str(tier), machine, machine_file(tier))


def _kept(name: str, machine: Machine, path: Path) -> Finding:
    keep_machine(machine, path)
    out, into = (link.size_bytes[-1] / link.time_us[-1] / 1000 for link in (machine.out, machine.into))
    text = (
        f"{name}: {out:.2f} GB/s out, {into:.2f} GB/s in, x{machine.both_factor:.2f} both at once, "
        f"x{machine.loaded_factor:.2f} while ops run; kept in {path}"
    )
    values = {"out_gb_per_s": out, "in_gb_per_s": into, "both_factor": machine.both_factor,
              "loaded_factor": machine.loaded_factor}  # fmt: skip
    return Finding("link", True, text, values)


def _disk(folder: str) -> Finding:
    block = os.urandom(_BLOCK_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            write = _rate(lambda: [file.write(block) for _ in range(_TEST_BYTES // _BLOCK_BYTES)], file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            read = _rate(lambda: [file.read(_BLOCK_BYTES) for _ in range(_TEST_BYTES // _BLOCK_BYTES)], None)
    except OSError as error:
        return Finding("disk", False, f"{folder}: {error.strerror}", {})
    free = shutil.disk_usage(folder).free
    text = f"{folder}: writes {format_bytes(write)}/s, reads {format_bytes(read)}/s, {format_bytes(free)} free"
    if is_in_memory(folder):
        text += "; it is in memory (tmpfs), so on the CPU it saves none"
    return Finding("disk", True, text, {"write_bytes_per_s": write, "read_bytes_per_s": read, "free_bytes": free})


def _rate(action: Any, sync: int | None) -> float:
    started = time.perf_counter()
    action()
    if sync is not None:
        os.fsync(sync)
    return _TEST_BYTES / (time.perf_counter() - started)

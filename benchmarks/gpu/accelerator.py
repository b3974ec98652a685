"""The device under test: time, memory as the driver sees it, repeatable kernels. A CPU will do to try things out."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import deterministic

import memfit
from benchmarks.common.result import Row
from benchmarks.gpu.cells import Request
from benchmarks.gpu.h200 import TIER_BYTES
from benchmarks.gpu.virtual import is_simulated
from memfit.running.engine.tiers import TierSpec
from memfit.running.host import host_memory_bytes

_SAMPLE_S = 0.02
_HOST_SHARE = 0.93  # of the host's memory in use: then the cell ends itself, before the system ends the runner
_TIER_SHARE = 0.7
_CGROUP = Path("/sys/fs/cgroup")
OUT_OF_HOST_MEMORY = 77


def prepare(request: Request) -> torch.device:
    """Make the request's device current, kernels repeatable if asked, and return the device.

    `strict`: where torch has none that repeats itself it raises, instead of taking another. Fused attention has a
    backward pass that repeats itself only then (aten/src/ATen/native/transformers/cuda/attention_backward.cu).
    """
    device = torch.device(request["device"])
    if request.get("deterministic", True):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=not request.get("strict", False))
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would write all memory once more
        torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        if request.get("mode") == "expandable":
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.cuda.init()
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    else:
        torch.set_num_threads(1)
    threading.Thread(target=_watch_host, daemon=True).start()
    return device


def now(device: torch.device) -> Any:
    """Return this moment in the order of the device's work: an event of the compute stream, or the clock's time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms_between(begin: Any, end: Any) -> float:
    """Return the milliseconds between two moments that have passed."""
    return 1000 * (end - begin) if isinstance(begin, float) else float(begin.elapsed_time(end))


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def used_bytes(device: torch.device) -> int | None:
    """Return what is in use of the GPU's memory, by the driver; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def release(device: torch.device) -> None:
    """Give back what is no longer referred to, as far as torch can, and count peaks anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


class PeakSampler:
    """The most memory in use on the GPU while the context was open: of all processes, and of this one if NVML tells."""

    def __init__(self, device: torch.device) -> None:
        self._device, (self._nvml, self._handle) = device, _nvml(device)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peaks: dict[str, int | None] = {"peak_bytes": None, "process_peak_bytes": None}

    def __enter__(self) -> PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        ended = self._device.type != "cuda"
        while not ended:
            ended = self._end.wait(_SAMPLE_S)  # and looks once more when it ends
            self._count("peak_bytes", self._used())
            with contextlib.suppress(Exception):  # without NVML; in a container the processes may have other numbers
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
                self._count("process_peak_bytes", *(p.usedGpuMemory for p in processes if p.pid == os.getpid()))

    def _count(self, peak: str, *found: int | None) -> None:
        self._peaks[peak] = max(filter(None, (self._peaks[peak], *found)), default=None)

    def _used(self) -> int | None:
        if self._nvml is None:
            return used_bytes(self._device)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def driver(self) -> dict[str, int | None]:
        """Return the driver's view: the peaks, and what is in use now, counted alike; None on a CPU.

        When all tensors are gone, what is left is the context and loaded kernels.
        """
        return self._peaks | {"left_bytes": self._used()}


def _nvml(device: torch.device) -> tuple[Any, Any]:
    with contextlib.suppress(Exception):
        if device.type == "cuda":
            import pynvml

            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    return None, None


def host_used_bytes() -> int:
    """Return how much of the host's memory, or of its control group's, is in use and cannot be given back."""
    with contextlib.suppress(OSError, ValueError):
        int((_CGROUP / "memory.max").read_text())
        return int((_CGROUP / "memory.current").read_text()) - _rows(_CGROUP / "memory.stat").get("inactive_file", 0)
    meminfo = _rows(Path("/proc/meminfo"))
    return (meminfo["MemTotal:"] - meminfo["MemAvailable:"]) << 10


def _rows(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}


def tier_of(device: torch.device) -> str | TierSpec:
    """Return the host tier for a session: as much as leaves the host room for everything else."""
    if is_simulated():
        return TierSpec("ram", capacity_bytes=TIER_BYTES)
    return "ram" if device.type != "cuda" else f"ram:{int(_TIER_SHARE * host_memory_bytes()) >> 20}MiB"


def plain_and_attached(device: torch.device, measure: Callable[[], float]) -> dict[str, Callable[[], float]]:
    """Return ways to measure in turn: as things are, and in a session with room for everything, without a plan."""

    def attached() -> float:
        with memfit.session(1 << 30, tier_of(device), device=device, plan=False):
            return measure()

    return {"plain_ns": measure, "attached_ns": attached}


def _watch_host() -> None:
    """End the process when the host's memory runs out: otherwise the system picks whom to kill."""
    most = _HOST_SHARE * host_memory_bytes()
    while host_used_bytes() <= most:
        time.sleep(0.1)
    print("the host's memory is used up: the cell ends itself", file=sys.stderr, flush=True)
    os._exit(OUT_OF_HOST_MEMORY)


def describe(request: Request, note: Any) -> Row:
    """Return what the device and the software are. A cell."""
    device = torch.device(request["device"])
    facts: Row = {"name": "cpu", "python": platform.python_version(), "torch": torch.__version__,
                  "cuda": torch.version.cuda, "cores": os.cpu_count(), "host_bytes": host_memory_bytes()}  # fmt: skip
    if device.type != "cuda":
        return facts
    prop = torch.cuda.get_device_properties(device)
    facts |= {"name": prop.name, "total_bytes": prop.total_memory, "capability": f"{prop.major}.{prop.minor}",
              "multiprocessors": prop.multi_processor_count, "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    torch.zeros(1, device=device)
    facts["context_bytes"] = used_bytes(device)
    with contextlib.suppress(Exception):
        nvml, handle = _nvml(device)
        facts |= {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        }
    return facts


def build_engine(request: Request, note: Any) -> Row:
    """Build memfit's engine if this torch has none yet, and say where it is. A cell."""
    from memfit.running import engine

    built = engine.library_built_ahead() is not None or engine.cached_library().exists()
    started = time.monotonic()
    library = engine.library_in_use()
    return {"memfit": memfit.__version__, "library": library.name, "cached": built,
            "seconds": time.monotonic() - started, "cuda_headers": engine.has_cuda()}  # fmt: skip

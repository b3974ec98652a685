"""The device under test: time, memory as the driver sees it, repeatable kernels. A CPU will do to try things out."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import deterministic

_SAMPLE_S = 0.02
_HOST_SHARE = 0.93  # of the host's memory in use: then the cell ends itself, before the system ends the runner
_TIER_SHARE = 0.7
OUT_OF_HOST_MEMORY = 77


def prepare(request: dict[str, Any]) -> torch.device:
    """Make the request's device current, kernels repeatable if asked, and return the device."""
    device = torch.device(request["device"])
    if request.get("deterministic", True):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would write all memory once more
        torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        if settings := request.get("allocator"):
            torch.cuda.memory._set_allocator_settings(settings)
        torch.cuda.init()
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    else:
        torch.set_num_threads(1)
    threading.Thread(target=_watch_host, daemon=True).start()
    return device


class Moments:
    """Moments in the order of the device's work, and the time between two."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:
        """Return this moment: an event of the compute stream, or the clock's time."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two moments that have passed."""
        return 1000 * (end - begin) if self._device.type != "cuda" else float(begin.elapsed_time(end))


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
    """Give back what is no longer referred to, as far as torch can."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def reset_peaks(device: torch.device) -> None:
    """Begin to count the most that torch's allocator gives out anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


class PeakSampler:
    """The most memory in use on the GPU while the context was open: of all processes, and of this one if NVML tells."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._nvml, self._handle = _nvml(device)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_bytes: int | None = None
        self.process_peak_bytes: int | None = None

    def __enter__(self) -> PeakSampler:
        if self._device.type == "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda" and not self._end.is_set():
            self.sample()
            self._end.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_SAMPLE_S):
            self.sample()

    def used(self) -> int | None:
        """Return what is in use now; None on a CPU. Counts as the peak does, so that the two can be compared."""
        if self._nvml is None:
            return used_bytes(self._device)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def sample(self) -> None:
        """Look once."""
        used = self.used()
        self.peak_bytes = max(self.peak_bytes or 0, used or 0) or None
        if self._nvml is not None:
            with contextlib.suppress(Exception):  # in a container the processes may have other numbers
                own = [p.usedGpuMemory for p in self._processes() if p.pid == os.getpid() and p.usedGpuMemory]
                self.process_peak_bytes = max([self.process_peak_bytes or 0, *own]) or None

    def _processes(self) -> Any:
        assert self._nvml is not None
        return self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)


def _nvml(device: torch.device) -> tuple[Any, Any]:
    if device.type != "cuda":
        return None, None
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    except Exception:
        return None, None


def host_bytes() -> int:
    """Return the memory that this process may use: the machine's, or its control group's."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return min(total, limit) if limit else total


def _cgroup(name: str) -> int | None:
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):
        return None


def host_used_bytes() -> int:
    """Return how much of the host's memory is in use and cannot be given back."""
    used = _cgroup("memory.current")
    if used is not None and _cgroup("memory.max") is not None:
        return used - _cgroup_cache()
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) << 10
    return fields["MemTotal"] - fields["MemAvailable"]


def _cgroup_cache() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def tier_of(device: torch.device) -> str:
    """Return the host tier for a session: as much as leaves the host room for everything else."""
    return "ram" if device.type != "cuda" else f"ram:{int(_TIER_SHARE * host_bytes()) >> 20}MiB"


def _watch_host() -> None:
    """End the process when the host's memory runs out: else the system picks whom to kill."""
    most = _HOST_SHARE * host_bytes()
    while True:
        if host_used_bytes() > most:
            print("the host's memory is used up: the cell ends itself", file=sys.stderr, flush=True)
            os._exit(OUT_OF_HOST_MEMORY)
        time.sleep(0.1)


def describe(request: dict[str, Any], note: Any) -> dict[str, Any]:
    """Return what the device and the software are. A cell."""
    import platform

    device = torch.device(request["device"])
    facts: dict[str, Any] = {"name": "cpu", "python": platform.python_version(), "torch": torch.__version__,
                             "cuda": torch.version.cuda, "cores": os.cpu_count(),
                             "host_bytes": host_bytes()}  # fmt: skip
    if device.type != "cuda":
        return facts
    prop = torch.cuda.get_device_properties(device)
    facts |= {"name": prop.name, "total_bytes": prop.total_memory, "capability": f"{prop.major}.{prop.minor}",
              "multiprocessors": prop.multi_processor_count, "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    torch.zeros(1, device=device)
    facts["context_bytes"] = used_bytes(device)
    with contextlib.suppress(Exception):
        facts |= _nvml_facts(device)
    return facts


def _nvml_facts(device: torch.device) -> dict[str, Any]:
    nvml, handle = _nvml(device)
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "sm_max_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
    }


def build_engine(request: dict[str, Any], note: Any) -> dict[str, Any]:
    """Build memfit's engine if this torch has none yet, and say where it is. A cell."""
    import memfit
    from memfit.running import engine

    built = engine.cached_library().exists()
    started = time.monotonic()
    engine.load()
    return {"memfit": memfit.__version__, "library": engine.cached_library().name, "cached": built,
            "seconds": time.monotonic() - started, "cuda_headers": engine.cuda_headers() is not None}  # fmt: skip

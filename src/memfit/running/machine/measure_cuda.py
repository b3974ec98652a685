"""The speed of copies between a GPU and page-locked host memory: by size, both ways at once, and while ops run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from memfit._native import CUDA_ALIGNMENT
from memfit.errors import MemfitError
from memfit.files import load_machine
from memfit.machine import Link, Machine
from memfit.running import engine
from memfit.running.machine.measure import keep_machine

_SIZES = tuple(1 << exponent for exponent in range(12, 29, 2))  # 4 KiB to 256 MiB
_REPEATS = 5
_MATMUL = 8192
_NEEDED_BYTES = 2 << 30  # two buffers, two matrices, and what cuBLAS takes for itself
_LOAD_PRODUCTS = 12  # matrix products that keep the GPU busy for longer than the copy beside them


def cuda_machine(device: torch.device) -> Machine | None:
    """Return the GPU's machine: as it was measured before, otherwise measured now (about two seconds) and kept.

    None if it is too full to be measured.
    """
    path = cuda_machine_file(device)
    with suppress(MemfitError):  # none yet, or an unreadable one
        return load_machine(path)
    if torch.cuda.mem_get_info(device)[0] < _NEEDED_BYTES:
        return None
    machine = measure_cuda(device)
    with suppress(MemfitError):  # it is measured again the next time
        keep_machine(machine, path)
    return machine


def cuda_machine_file(device: torch.device) -> Path:
    """Return the path of the measured machine of a GPU, by its model's name."""
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device).lower())
    return engine.cache_folder() / f"machine-{name}.json"


def measure_cuda(device: torch.device) -> Machine:
    """Measure the links of a GPU. Not to be called inside a session, whose order of copies it would join."""
    with torch.cuda.device(device):
        bench = _Bench(device)
        out, into = ([bench.seconds(way, size) for size in _SIZES] for way in ("out", "in"))
        large = _SIZES[-1]
        both = min(a / b for a, b in zip((out[-1], into[-1]), bench.both(large), strict=True))
        loaded = min(alone / bench.under_load(way, large) for way, alone in (("out", out[-1]), ("in", into[-1])))
        memory = bench.memory_bytes_per_s()
        total = torch.cuda.get_device_properties(device).total_memory
        bench.release()
    return Machine(
        torch.cuda.get_device_name(device), _curve(out), _curve(into), min(both, 1.0), total,
        alignment=CUDA_ALIGNMENT, loaded_factor=min(loaded, 1.0), memory_bytes_per_s=memory,
    )  # fmt: skip


def _curve(seconds: list[float]) -> Link:
    return Link.levelled(_SIZES, [1e6 * s for s in seconds])


@dataclass
class _Bench:
    """Buffers on both sides, and a stream each way."""

    device: torch.device
    streams: dict[str, torch.cuda.Stream] = field(default_factory=dict)
    on_gpu: dict[str, torch.Tensor] = field(default_factory=dict)
    on_host: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for way in ("out", "in"):
            self.streams[way] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self.on_gpu[way] = torch.zeros(_SIZES[-1], dtype=torch.uint8, device=self.device)
            self.on_host[way] = torch.zeros(_SIZES[-1], dtype=torch.uint8).pin_memory()
        torch.cuda.synchronize(self.device)

    def seconds(self, way: str, size: int) -> float:
        """Return the time of the median copy."""
        times = []
        for _ in range(_REPEATS + 1):
            began, ended = self._copy(way, size)
            ended.synchronize()
            times.append(_seconds(began, ended))
        return statistics.median(times[1:])

    def both(self, size: int) -> tuple[float, float]:
        """Return the time of a copy each way with the other beside it."""
        times: dict[str, list[float]] = {"out": [], "in": []}
        for _ in range(_REPEATS):
            # Two of each: the first of one way is still under way when the second of the other begins.
            events = {way: [self._copy(way, size) for _ in range(2)] for way in ("out", "in")}
            torch.cuda.synchronize(self.device)
            for way, pairs in events.items():
                times[way].append(sum(_seconds(*pair) for pair in pairs) / 2)
        return statistics.median(times["out"]), statistics.median(times["in"])

    def under_load(self, way: str, size: int) -> float:
        """Return the time of a copy while matrix products run."""
        a = torch.ones(_MATMUL, _MATMUL, dtype=torch.bfloat16, device=self.device)
        product = torch.empty_like(a)
        times = []
        for _ in range(_REPEATS):
            torch.cuda.synchronize(self.device)
            for _ in range(_LOAD_PRODUCTS):
                torch.mm(a, a, out=product)
            began, ended = self._copy(way, size)
            ended.synchronize()
            times.append(_seconds(began, ended))
        torch.cuda.synchronize(self.device)
        return statistics.median(times)

    def memory_bytes_per_s(self) -> float:
        """Return the rate of a copy inside the GPU's memory, bytes read and written."""
        a, b = self.on_gpu["out"], self.on_gpu["in"]
        seconds = _timed(lambda: b.copy_(a))
        return 2 * a.nbytes / seconds

    def release(self) -> None:
        """Give everything back to the system, page-locked memory included."""
        self.on_gpu.clear()
        self.on_host.clear()
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()

    def _copy(self, way: str, size: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        gpu, host = self.on_gpu[way][:size], self.on_host[way][:size]
        began, ended = _event(), _event()
        with torch.cuda.stream(self.streams[way]):
            began.record()
            (host if way == "out" else gpu).copy_(gpu if way == "out" else host, non_blocking=True)
            ended.record()
        return began, ended


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _seconds(began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
    return float(began.elapsed_time(ended)) / 1000


def _timed(action: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        began, ended = _event(), _event()
        began.record()
        action()
        ended.record()
        ended.synchronize()
        times.append(_seconds(began, ended))
    return statistics.median(times[1:])

"""Cells of the probe that need no memfit: the link, alone and beside work, pinned memory, copies inside the GPU."""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.accelerator import prepare
from benchmarks.gpu.perform import Note

_SMALLEST, _LARGEST = 4 << 10, 1 << 30
_PER_SIZE = 1 << 30  # bytes that are copied to time one size, but so many copies at most and at least:
_MOST, _FEWEST = 50, 4
_PRODUCT = 8192
_CHUNK = 64 << 20  # of a copy beside work
_QUICK_BYTES = 4 << 20
_QUEUED = 8
WAYS = ("out", "in")  # of the GPU


def sizes(quick: bool) -> list[int]:
    """Return the sizes that are measured: each four times the one before."""
    largest, found = (_QUICK_BYTES if quick else _LARGEST), [_SMALLEST]
    while found[-1] < largest:
        found.append(min(4 * found[-1], largest))
    return found


class Link:
    """Pinned and device buffers, and a stream for each way."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.host = {way: torch.empty(size, dtype=torch.uint8, pin_memory=True) for way in WAYS}
        self.device = {way: torch.empty(size, dtype=torch.uint8, device=device) for way in WAYS}
        self.streams = {way: torch.cuda.Stream(device) for way in WAYS}

    def copy(self, way: str, size: int, count: int = 1) -> tuple[Any, Any]:
        """Start so many copies one way; return the events before and after them."""
        to, source = (self.host, self.device) if way == "out" else (self.device, self.host)
        stream = self.streams[way]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        with torch.cuda.stream(stream):
            for _ in range(count):
                to[way][:size].copy_(source[way][:size], non_blocking=True)
        end.record(stream)
        return begin, end


def _elapsed_us(pair: tuple[Any, Any]) -> float:
    torch.cuda.synchronize()
    return float(1000 * pair[0].elapsed_time(pair[1]))


def link(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the time of one copy and the rate of many in a row, by size, each way."""
    device = prepare(request)
    every = sizes(request["quick"])
    lanes = Link(device, every[-1])
    found: dict[str, Any] = {way: [] for way in WAYS}
    for way in WAYS:
        lanes.copy(way, every[-1])  # the first of a stream takes longer
        for size in every:
            count = max(_FEWEST, min(_MOST, _PER_SIZE // size))
            once = [_elapsed_us(lanes.copy(way, size)) for _ in range(min(count, 20))]
            row = _elapsed_us(lanes.copy(way, size, count)) / count
            found[way].append({"size_bytes": size, "one_us": statistics.median(once), "in_a_row_us": row,
                               "gb_per_s": size / row / 1e3})  # fmt: skip
        note(found)
    return found


def rates(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the link's rate each way for large copies, by itself: what a bound is reckoned with."""
    device = prepare(request)
    if device.type != "cuda":
        return {f"{way}_gb_per_s": None for way in WAYS}
    size = _QUICK_BYTES if request["quick"] else 256 << 20
    lanes = Link(device, size)
    found = {}
    for way in WAYS:
        lanes.copy(way, size)
        found[f"{way}_gb_per_s"] = 8 * size / _elapsed_us(lanes.copy(way, size, 8)) / 1e3
    return found


def both_ways(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the rate each way while the other is busy too."""
    device = prepare(request)
    size = _QUICK_BYTES if request["quick"] else 256 << 20
    lanes, count = Link(device, size), 16
    pairs = {way: lanes.copy(way, size, count) for way in WAYS}
    found = {f"{way}_gb_per_s": count * size / _elapsed_us(pair) / 1e3 for way, pair in pairs.items()}
    overlap = [pairs["out"][0].elapsed_time(pairs["in"][1]), pairs["in"][0].elapsed_time(pairs["out"][1])]
    return found | {"overlap_ms": overlap}


def under_product(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the rates while a large bf16 product runs on the compute stream, and how much each way slows that."""
    device, quick = prepare(request), request["quick"]
    side, size = (1024, _QUICK_BYTES) if quick else (_PRODUCT, _CHUNK)
    lanes = Link(device, size)
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    product = partial(torch.mm, a, b, out=c)

    def start(counts: dict[str, int], pairs: dict[str, Any]) -> None:
        pairs |= {way: lanes.copy(way, size, count) for way, count in counts.items()}

    count = max(int(3e5 / (_products(product, 20) / 20)), 4)  # 0.3 s of products
    alone = _products(product, count)
    found: dict[str, Any] = {
        "side": side,
        "product_us": alone / count,
        "tflop_per_s": 2 * side**3 * count / alone / 1e6,
    }
    copy_us = {way: _elapsed_us(lanes.copy(way, size, 8)) / 8 for way in WAYS}
    for ways in (("out",), ("in",), WAYS):
        more = {way: int(1.6 * alone / copy_us[way]) + 1 for way in ways}  # outlast the products
        fewer = {way: int(0.4 * alone / copy_us[way]) + 1 for way in ways}  # end before the products do
        slowed = _products(product, count, before=partial(start, more, {}))
        pairs: dict[str, Any] = {}
        _products(product, count, during=partial(start, fewer, pairs))
        rates = {way: fewer[way] * size / _elapsed_us(pairs[way]) / 1e3 for way in ways}
        found["+".join(ways)] = {"gb_per_s": rates, "product_slowdown": slowed / alone}
        note(found)
    return found


def _products(once: Callable[[], Any], count: int, before: Callable[[], Any] = lambda: None,
              during: Callable[[], Any] = lambda: None) -> float:  # fmt: skip
    """Return the microseconds that so many calls take, beside what is started before or during them.

    `during` is called with some of them in the queue, so that the stream does not run dry meanwhile.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    once()
    torch.cuda.synchronize()
    before()
    begin.record()
    for index in range(count):
        once()
        if index == min(_QUEUED, count - 1):
            during()
    end.record()
    return _elapsed_us((begin, end))


def inside(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the rate of copies within the GPU's memory, by size: bytes copied, not read plus written."""
    device = prepare(request)
    every = [size for size in sizes(request["quick"]) if size >= 1 << 20]
    a, b = (torch.empty(every[-1], dtype=torch.uint8, device=device) for _ in range(2))

    def copy(size: int) -> None:
        b[:size].copy_(a[:size])

    rows = []
    for size in every:
        count = max(_FEWEST, min(_MOST, _PER_SIZE // size))
        us = _products(partial(copy, size), count) / count
        rows.append({"size_bytes": size, "us": us, "gb_per_s": size / us / 1e3})
    return {"sizes": rows}


def pinned(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return what pinned memory costs by size: torch's allocator, first and again, and mmap with cudaHostRegister."""
    prepare(request)
    rows: list[dict[str, Any]] = []
    for size in [size for size in sizes(request["quick"]) if size >= 1 << 20]:
        row: dict[str, Any] = {"size_bytes": size}
        for when in ("first", "again"):
            started = time.perf_counter()
            held = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            row[f"torch_{when}_ms"] = 1e3 * (time.perf_counter() - started)
            del held
        row |= _registered(size)
        rows.append(row)
        note({"sizes": rows})
    return {"sizes": rows}


def _registered(size: int) -> dict[str, float]:
    """Time mmap and cudaHostRegister of fresh pages, of pages that are there, and the giving back."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = (ctypes.c_char * size).from_buffer(memory)
    address, runtime, found = ctypes.addressof(view), torch.cuda.cudart(), {}
    for name in ("register_fresh_ms", "register_touched_ms"):
        started = time.perf_counter()
        error = runtime.cudaHostRegister(address, size, 0)
        found[name] = 1e3 * (time.perf_counter() - started)
        if int(error) != 0:
            raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(error)}")
        started = time.perf_counter()
        runtime.cudaHostUnregister(address)
        found["unregister_ms"] = 1e3 * (time.perf_counter() - started)
    del view
    memory.close()
    return found

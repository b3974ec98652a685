"""Cells of the probe that need no memfit: the link, alone and beside work, pinned memory, copies inside the GPU."""

from __future__ import annotations

import ctypes
import mmap
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.common.result import Row
from benchmarks.common.timing import timed
from benchmarks.gpu.accelerator import ms_between, now, prepare
from benchmarks.gpu.cells import Note, Request

_SMALLEST, _LARGEST, _LARGEST_QUICK = 4 << 10, 1 << 30, 4 << 20
_PER_SIZE = 1 << 30  # bytes that are copied to time one size, but so many copies at most and at least:
_MOST, _FEWEST = 50, 4
_PRODUCT = 8192
_QUICK_PRODUCT = 1024
_CHUNK = 64 << 20  # of a copy beside work
_RATED = 256 << 20
_QUEUED = 8
WAYS = ("out", "in")  # of the GPU
Moments = tuple[Any, Any]


def sizes(quick: bool, smallest: int = _SMALLEST) -> list[int]:
    """Return the sizes that are measured: each four times the one before."""
    largest = _LARGEST_QUICK if quick else _LARGEST
    return [size for size in (_SMALLEST << 2 * n for n in range(16)) if smallest <= size <= largest]


def copies_of(size: int) -> int:
    """Return how many copies time one size."""
    return max(_FEWEST, min(_MOST, _PER_SIZE // size))


class Link:
    """Pinned and device buffers, and a stream for each way."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.host = {way: torch.empty(size, dtype=torch.uint8, pin_memory=True) for way in WAYS}
        self.device = {way: torch.empty(size, dtype=torch.uint8, device=device) for way in WAYS}
        self.streams = {way: torch.cuda.Stream(device) for way in WAYS}
        self.size = size

    def copy(self, way: str, size: int, count: int = 1) -> Moments:
        """Start so many copies one way; return the moments before and after them."""
        to, source = (self.host, self.device) if way == "out" else (self.device, self.host)
        with torch.cuda.stream(self.streams[way]):
            begin = now(self.device[way].device)
            for _ in range(count):
                to[way][:size].copy_(source[way][:size], non_blocking=True)
            return begin, now(self.device[way].device)

    def rate(self, way: str, count: int) -> float:
        """Return the GB/s of so many copies of a whole buffer, by themselves."""
        self.copy(way, self.size)  # the first of a stream takes longer
        return count * self.size / _elapsed_us(self.copy(way, self.size, count)) / 1e3


def _elapsed_us(pair: Moments) -> float:
    torch.cuda.synchronize()
    return 1000 * ms_between(*pair)


def link(request: Request, note: Note) -> Row:
    """Return the time of one copy and the rate of many in a row, by size, each way."""
    device, every = prepare(request), sizes(request["quick"])
    lanes, found = Link(device, every[-1]), {way: list[Row]() for way in WAYS}
    for way in WAYS:
        lanes.copy(way, every[-1])
        for size in every:
            count = copies_of(size)
            once = [_elapsed_us(lanes.copy(way, size)) for _ in range(min(count, 20))]
            row = _elapsed_us(lanes.copy(way, size, count)) / count
            found[way].append({"size_bytes": size, "one_us": statistics.median(once), "in_a_row_us": row,
                               "gb_per_s": size / row / 1e3})  # fmt: skip
        note(found)
    return found


def rates(request: Request, note: Note) -> Row:
    """Return the link's rate each way for large copies, by itself: what a bound is reckoned with."""
    device = prepare(request)
    if device.type != "cuda":
        return {f"{way}_gb_per_s": None for way in WAYS}
    lanes = Link(device, _LARGEST_QUICK if request["quick"] else _RATED)
    return {f"{way}_gb_per_s": lanes.rate(way, 8) for way in WAYS}


def both_ways(request: Request, note: Note) -> Row:
    """Return the rate each way while the other is busy too."""
    device, count = prepare(request), 16
    lanes = Link(device, _LARGEST_QUICK if request["quick"] else _RATED)
    pairs = {way: lanes.copy(way, lanes.size, count) for way in WAYS}
    found = {f"{way}_gb_per_s": count * lanes.size / _elapsed_us(pair) / 1e3 for way, pair in pairs.items()}
    overlap = [ms_between(pairs["out"][0], pairs["in"][1]), ms_between(pairs["in"][0], pairs["out"][1])]
    return found | {"overlap_ms": overlap}


def under_product(request: Request, note: Note) -> Row:
    """Return the rates while a large bf16 product runs on the compute stream, and how much each way slows that."""
    device, quick = prepare(request), request["quick"]
    side, size = (_QUICK_PRODUCT, _LARGEST_QUICK) if quick else (_PRODUCT, _CHUNK)
    lanes = Link(device, size)
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = partial(torch.mm, a, b, out=torch.empty_like(a))
    count = max(int(3e5 / (_us(product, 20) / 20)), 4)  # 0.3 s of products
    alone = _us(product, count)
    tflop_per_s = 2 * side**3 * count / alone / 1e6
    found: Row = {"side": side, "product_us": alone / count, "tflop_per_s": tflop_per_s}
    copy_us = {way: size / lanes.rate(way, 8) / 1e3 for way in WAYS}

    def start(ways: tuple[str, ...], share: float, begun: list[dict[str, tuple[int, Moments]]]) -> None:
        """Start copies that take this share of the products' time; tell how many, and their moments."""
        counts = {way: int(share * alone / copy_us[way]) + 1 for way in ways}
        begun.append({way: (count, lanes.copy(way, size, count)) for way, count in counts.items()})

    for ways in (("out",), ("in",), WAYS):
        slowed = _us(product, count, before=partial(start, ways, 1.6, []))  # they outlast the products
        begun: list[dict[str, tuple[int, Moments]]] = []
        _us(product, count, during=partial(start, ways, 0.4, begun))  # they end before the products do
        rates = {way: copies * size / _elapsed_us(pair) / 1e3 for way, (copies, pair) in begun[0].items()}
        found["+".join(ways)] = {"gb_per_s": rates, "product_slowdown": slowed / alone}
        note(found)
    return found


def _us(once: Callable[[], Any], count: int, before: Callable[[], Any] = lambda: None,
        during: Callable[[], Any] = lambda: None) -> float:  # fmt: skip
    """Return the microseconds that so many calls take, beside what is started before or during them.

    `during` is called with some of them in the queue, so that the stream does not run dry meanwhile.
    """
    once()
    torch.cuda.synchronize()
    before()
    begin = now(torch.device("cuda"))
    for index in range(count):
        once()
        if index == min(_QUEUED, count - 1):
            during()
    return _elapsed_us((begin, now(torch.device("cuda"))))


def inside(request: Request, note: Note) -> Row:
    """Return the rate of copies within the GPU's memory, by size: bytes copied, not read plus written."""
    device, every = prepare(request), sizes(request["quick"], 1 << 20)
    a, b = (torch.empty(every[-1], dtype=torch.uint8, device=device) for _ in range(2))
    rows = []
    for size in every:
        us = _us(partial(b[:size].copy_, a[:size]), copies_of(size)) / copies_of(size)
        rows.append({"size_bytes": size, "us": us, "gb_per_s": size / us / 1e3})
    return {"sizes": rows}


def pinned(request: Request, note: Note) -> Row:
    """Return what pinned memory costs by size: torch's allocator, first and again, and mmap with cudaHostRegister."""
    prepare(request)
    rows: list[Row] = []
    for size in sizes(request["quick"], 1 << 20):
        row: Row = {"size_bytes": size}
        for when in ("first", "again"):
            held, seconds = timed(partial(torch.empty, size, dtype=torch.uint8, pin_memory=True))
            row[f"torch_{when}_ms"] = 1e3 * seconds
            del held
        rows.append(row | registered(size))
        note({"sizes": rows})
    return {"sizes": rows}


def registered(size: int) -> dict[str, float]:
    """Time mmap and cudaHostRegister of fresh pages, of pages that are there, and the giving back."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = (ctypes.c_char * size).from_buffer(memory)
    address, runtime, found = ctypes.addressof(view), torch.cuda.cudart(), {}
    for name in ("register_fresh_ms", "register_touched_ms"):
        error, seconds = timed(partial(runtime.cudaHostRegister, address, size, 0))
        if int(error) != 0:
            raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(error)}")
        found[name] = 1e3 * seconds
        found["unregister_ms"] = 1e3 * timed(partial(runtime.cudaHostUnregister, address))[1]
    del view
    memory.close()
    return found

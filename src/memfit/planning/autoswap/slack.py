"""Waits for copies out, moved to where their bytes are needed: a slower link than planned then costs nothing yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memfit import _native
from memfit.ir import Swap, Trace, align_up
from memfit.planning.autoswap.candidates import latest_free_by
from memfit.simulate import planned_bytes


def relax(trace: Trace, swaps: Sequence[Swap], budget_bytes: int) -> list[Swap]:
    """Return `swaps` with each `free_by` as late as `budget_bytes` allows, the latest first; never earlier."""
    count = len(trace.ops)
    room = _native.Headroom(budget_bytes - planned_bytes(trace, swaps))
    relaxed = list(swaps)
    for index in sorted(range(len(swaps)), key=lambda i: (-swaps[i].free_by, i)):
        swap = swaps[index]
        held = align_up(swap.size_bytes, trace.alignment)
        by = latest_free_by(trace, swap.storage, swap.in_before, returns=swap.returns)
        free_by = min(_latest(room, swap, held, count), max(by, swap.free_by))
        for begin, end in _within(swap.free_by, free_by, count):
            room.add(begin, end, -held)
        relaxed[index] = replace(swap, free_by=free_by)
    return relaxed


def _latest(room: _native.Headroom, swap: Swap, held: int, count: int) -> int:
    """Return the first op in the absence that has no room for the bytes, or the last op of it."""
    last = max(swap.in_start - 1, swap.free_by)  # a swap may free nothing at all
    passed = swap.free_by
    for begin, end in _within(swap.free_by, last, count):
        blocked = room.first_below(begin, end, held)
        if blocked >= 0:
            return passed + blocked - begin
        passed += end - begin
    return last


def _within(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    """Return the ops [begin, end), at most `count` and perhaps over the iteration's end, as spans within it."""
    shift = begin // count * count
    spans = [(begin - shift, min(end - shift, count)), (0, end - shift - count)]
    return [span for span in spans if span[0] < span[1]]

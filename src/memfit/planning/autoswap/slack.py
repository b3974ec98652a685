"""Waits for copies out, moved to where their bytes are needed: a slower link than planned then costs nothing yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Swap, Trace, align_up
from memfit.simulate import add_span, planned_bytes


def relax(trace: Trace, swaps: Sequence[Swap], budget_bytes: int) -> list[Swap]:
    """Return `swaps` with each `free_by` as late as `budget_bytes` allows, the latest first; never earlier."""
    room = budget_bytes - planned_bytes(trace, swaps)
    relaxed = list(swaps)
    for index in sorted(range(len(swaps)), key=lambda i: (-swaps[i].free_by, i)):
        swap = swaps[index]
        held = align_up(swap.size_bytes, trace.alignment)
        free_by = _latest(room, swap, held)
        add_span(room, swap.free_by, free_by, -held)
        relaxed[index] = replace(swap, free_by=free_by)
    return relaxed


def _latest(room: Int64Array, swap: Swap, held: int) -> int:
    """Return the first op in the absence that has no room for the bytes, or the last op of it."""
    begin = swap.free_by % len(room)
    end = begin + swap.in_start - 1 - swap.free_by
    absence = np.concatenate((room[begin:end], room[: max(end - len(room), 0)]))
    blocked = np.flatnonzero(absence < held)
    return swap.free_by + int(blocked[0]) if len(blocked) else swap.in_start - 1

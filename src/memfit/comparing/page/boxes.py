"""The rectangles of the address picture."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Plan, Transformed
from memfit.planning.autoswap.place import TickClock, stays_of_trace
from memfit.planning.stays import place_stays
from memfit.progress import part
from memfit.reporting.page import Boxes


def boxes_of(made: Transformed, plan: Plan | None, effort: float) -> Boxes:
    """Return a place for each stay. Where one needs several by turns, the first is drawn."""
    trace = made.trace
    stays = stays_of_trace(trace, plan.swaps if plan else ())
    with part(effort):
        packing = place_stays(stays, alignment=trace.alignment, effort=effort).packing
    first = np.concatenate([[0], np.cumsum(packing.slots)])[: len(stays)]
    clock = TickClock.of(trace)
    begins = [clock.at_op(op) for op in range(len(trace.ops))]
    count = made.runs_again.count(False)
    original = next_original(made, count)

    def op_at(time: int) -> int:
        return int(original[max(bisect_right(begins, time) - 1, 0)])

    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    for row in range(len(stays)):
        begin, end = int(stays.lower[row]), int(stays.upper[row])
        spans = [(begin, min(end, clock.period))]
        if end > clock.period:
            spans.append((0, min(end - clock.period, begin)))
        for low, high in (span for span in spans if span[1] > span[0]):
            until = count if high >= clock.period else op_at(high - 1) + 1
            values = (made.storage_of[int(stays.owner[row])], op_at(low), max(until, op_at(low) + 1))
            for column, value in zip(columns, (*values, int(packing.offsets[first[row]])), strict=True):
                column.append(value)
    return Boxes(*columns, packing.footprint)


def next_original(made: Transformed, count: int) -> Int64Array:
    """Return, for each op, the original op that it is, or before which it runs again; there are `count` of these."""
    again = np.array(made.runs_again, dtype=bool)
    done = np.cumsum(~again)
    return np.minimum(np.where(again, done, done - 1), count - 1).astype(np.int64)

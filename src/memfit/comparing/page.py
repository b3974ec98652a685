"""The data of `memfit report`: an iteration's memory, who owns its peak, and what a plan does about it."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memfit.arrays import Int64Array
from memfit.comparing.curve import trace_curve
from memfit.comparing.explaining.carried import Carried, carried_jointly, carry_out
from memfit.comparing.names import op_info
from memfit.ir import Category, Plan, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.autoswap.place import TickClock, stays_of_trace
from memfit.planning.floor import floor_of
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.lifetimes import gaps, live_after, live_bytes, peak_tick
from memfit.planning.stays import place_stays
from memfit.reporting.page import Boxes, ChangeRow, Changes, Head, Lane, OwnerRow, Page, WhatIf
from memfit.simulate import load_bytes
from memfit.units import format_bytes, format_share


def page_of(
    trace: Trace, machine: Machine, *, file: str, budget_bytes: int | None = None, plan: Plan | None = None,
    points: int = 0, effort: float = 0.5, against: tuple[str, Trace] | None = None,
) -> Page:  # fmt: skip
    """Return the report on an iteration, and on a plan for it.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        file: The trace's file, for the next command.
        budget_bytes: What the arena may take: memfit plans for it.
        plan: A plan that was made before, in place of one for `budget_bytes`.
        points: How many budgets to plan for; below 2 none are.
        effort: The seconds of each search.
        against: Another iteration and what it is called: its peak is shown beside this one's.

    Raises:
        BudgetError: No plan meets the budget.
        InputError: The plan is of another trace.
        MemfitError: The plan breaks a promise.
    """
    carried = None
    if plan is not None:
        carried = carry_out(trace, machine, plan)
    elif budget_bytes is not None:
        carried = carried_jointly(trace, machine, plan_jointly(trace, machine, budget_bytes, effort=effort))
    made = carried.made if carried else Transformed.unchanged(trace)
    return Page(
        trace=trace,
        head=_head(trace, carried, file),
        live=live_by_category(trace),
        arena=_arena(carried) if carried else None,
        boxes=_boxes(made, carried.plan if carried else None, effort),
        owners=owners(trace),
        plan=carried.plan if carried else None,
        lanes=(Lane("foreseen", carried.made, carried.timeline),) if carried else (),
        what_if=_what_if(trace, machine, points, effort) if points > 1 else None,
        changes=changes(*against, trace) if against else None,
    )


def live_by_category(trace: Trace) -> dict[str, Int64Array]:
    """Return, by category, the bytes alive in each op when most are, each storage rounded up to the alignment.

    Categories without storages are left out. The sum over the categories is `load_bytes` less the pinned bytes.
    """
    own = {category: tuple(s for s in trace.storages if s.category is category) for category in Category}
    after = {category: live_bytes(replace(trace, storages=own[category]), aligned=True) for category in Category}
    total = live_bytes(trace, aligned=True)
    begins = [op.first_tick for op in trace.ops] + [trace.ticks]
    fullest = [begin + int(total[begin : end + 1].argmax()) for begin, end in zip(begins, begins[1:], strict=False)]
    return {category.value: row[fullest] for category, row in after.items() if row[fullest].any()}


def owners(trace: Trace) -> list[OwnerRow]:
    """Return who owns the peak, by line and category, the largest first."""
    ends = np.concatenate([[0.0], np.cumsum([op.duration_us for op in trace.ops])])
    widest: dict[int, float] = defaultdict(float)
    for gap in gaps(trace):
        widest[gap.storage] = max(widest[gap.storage], gap.duration_us)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for storage in live_after(trace, peak_tick(trace)):
        groups[trace.storages[storage].source, trace.storages[storage].category.value].append(storage)
    rows = []
    for (source, category), group in groups.items():
        own = [trace.storages[storage] for storage in group]
        lifetime = float(np.mean([ends[each.free] - ends[each.alloc] for each in own]))
        unused = max((widest[storage] for storage in group), default=0.0)
        rows.append(OwnerRow(source, category, sum(each.size_bytes for each in own), len(own), lifetime, unused))
    return sorted(rows, key=lambda row: (-row.size_bytes, row.source))


def changes(name: str, before: Trace, after: Trace) -> Changes:
    """Return how the peak of `after` differs from that of `before`, which is called `name`, by line."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for which, trace in enumerate((before, after)):
        for storage in live_after(trace, peak_tick(trace)):
            totals[trace.storages[storage].source][which] += trace.storages[storage].size_bytes
    rows = [ChangeRow(source, *both) for source, both in totals.items() if both[0] != both[1]]
    rows.sort(key=lambda row: (-abs(row.after_bytes - row.before_bytes), row.source))
    return Changes(name, int(load_bytes(before).max()), rows)


def _head(trace: Trace, carried: Carried | None, file: str) -> Head:
    load, floor = load_bytes(trace), floor_of(trace)
    peak = int(load.max())
    words = ["memfit", "report", file, "--budget", "60%", "-o", "report.html"]
    verdict = f"The peak is {format_bytes(peak)}, and {format_bytes(floor.budget_bytes)} would do with swaps"
    if carried is not None:
        budget = carried.plan.budget_bytes
        words = ["memfit", "run", "--budget", str(budget), trace.script or "SCRIPT"]
        moves = f"{len(carried.plan.swaps)} swaps and {len(carried.recomputes)} recomputes"
        verdict = (
            f"Within {format_bytes(budget)}, {100 * budget / peak:.0f} % of its peak, the iteration takes "
            f"{format_share(carried.added)} time: {moves}"
        )
    peak_op, floor_op = op_info(trace, int(load.argmax())), op_info(trace, floor.op)
    return Head(peak, peak_op, floor.budget_bytes, floor_op, carried.plan.budget_bytes if carried else None,
                verdict, shlex.join(words))  # fmt: skip


def _arena(carried: Carried) -> Int64Array:
    """Return what the plan has in the arena, by op: the most in the op itself and in what runs again before it."""
    resident = np.array(carried.timeline.resident_bytes, dtype=np.int64)
    most = np.zeros(len(carried.trace.ops), dtype=np.int64)
    np.maximum.at(most, _next_original(carried.made, len(most)), resident)
    return most


def _next_original(made: Transformed, count: int) -> Int64Array:
    """Return, for each op, the original op that it is, or before which it runs again."""
    again = np.array(made.runs_again, dtype=bool)
    done = np.cumsum(~again)
    return np.minimum(np.where(again, done, done - 1), count - 1).astype(np.int64)


def _boxes(made: Transformed, plan: Plan | None, effort: float) -> Boxes:
    """Return a place for each stay. Where one needs several by turns, the first is drawn."""
    trace = made.trace
    stays = stays_of_trace(trace, plan.swaps if plan else ())
    packing = place_stays(stays, alignment=trace.alignment, effort=effort).packing
    first = np.concatenate([[0], np.cumsum(packing.slots)])[: len(stays)]
    clock = TickClock.of(trace)
    begins = [clock.at_op(op) for op in range(len(trace.ops))]
    count = made.runs_again.count(False)
    original = _next_original(made, count)

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


def _what_if(trace: Trace, machine: Machine, points: int, effort: float) -> WhatIf:
    curve = trace_curve(trace, machine, points=points, effort=effort)
    found: Sequence[tuple[int, float]] = [(point.budget_bytes, point.overhead) for point in curve.points]
    return WhatIf(machine.name, [budget for budget, _ in found], [added for _, added in found])

"""A report put together: of a trace and a plan for it, or of a run under a budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.comparing.curve import curve_effort, trace_curve
from memfit.comparing.explaining.carried import Carried, carried_as, carried_jointly, carry_out
from memfit.comparing.explaining.storages import reasons
from memfit.comparing.names import op_info
from memfit.comparing.page.boxes import boxes_of, next_original
from memfit.comparing.page.peaks import changes, live_by_category, owners
from memfit.events import NamedLifetimes, lifetimes_of_trace
from memfit.ir import Plan, Timeline, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.floor import floor_of
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import joint_effort, plan_jointly
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import gaps
from memfit.progress import part
from memfit.reporting.page import GapRow, Head, Lane, Page, RunFigures, WhatIf
from memfit.simulate import load_bytes
from memfit.units import format_bytes, format_share, format_us


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is to have besides its trace and plan.

    Attributes:
        points: How many budgets to plan for; below 2 none are.
        effort: The seconds of each search.
        against: Another iteration or program, and what it is called: its peak is shown beside this one's.
        run: The figures of a run.
    """

    points: int = 0
    effort: float = 0.5
    against: tuple[str, NamedLifetimes] | None = None
    run: RunFigures | None = None


NOTHING_MORE = Asked()


def page_effort(trace: Trace, budget_bytes: int | None, asked: Asked) -> float:
    """Return the seconds of all searches of `page_of`, which plans for `budget_bytes` if they are given."""
    plan = 0.0 if budget_bytes is None else joint_effort(trace, asked.effort)
    curve = curve_effort(trace, asked.points, asked.effort) if asked.points > 1 else 0.0
    return plan + asked.effort + curve


def page_of(
    trace: Trace, machine: Machine, *, file: str, budget_bytes: int | None = None, plan: Plan | None = None,
    asked: Asked = NOTHING_MORE,
) -> Page:  # fmt: skip
    """Return the report on an iteration, and on a plan for it.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        file: The trace's file, for the next command.
        budget_bytes: What the arena may take: memfit plans for it.
        plan: A plan that was made before, in place of one for `budget_bytes`.
        asked: What else it is to have.

    Raises:
        BudgetError: No plan meets the budget.
        InputError: The plan is of another trace.
        MemfitError: The plan breaks a promise.
    """
    carried = None
    if plan is not None:
        carried = carry_out(trace, machine, plan)
    elif budget_bytes is not None:
        with part(joint_effort(trace, asked.effort)):
            found = plan_jointly(trace, machine, budget_bytes, effort=asked.effort)
        carried = carried_jointly(trace, machine, found)
    lanes = (Lane("foreseen", carried.made, carried.timeline),) if carried else ()
    own_bytes = asked.run.budget_bytes if asked.run else None
    return _page(trace, machine, _head(trace, carried, file, own_bytes), carried, lanes, asked)


def page_of_run(
    trace: Trace, machine: Machine, *, budget_bytes: int, plan: Plan, made: Transformed, predicted: Timeline,
    measured: Timeline | None, asked: Asked = NOTHING_MORE,
) -> Page:  # fmt: skip
    """Return the report on a run by a plan.

    Arguments:
        trace: The iteration that the plan is for.
        machine: The links that it is for.
        budget_bytes: The run's budget.
        plan: The plan; its swaps are of `made`.
        made: The iteration with its remakings.
        predicted: What the plan foresees.
        measured: The last iteration under it; None if none was noted.
        asked: What else it is to have.
    """
    carried = carried_as(Values.of(corrected(trace)), machine, plan, plan.recomputes, made, predicted)
    lanes = [Lane("foreseen", made, predicted)] + ([Lane("measured", made, measured)] if measured else [])
    peak = int(load_bytes(trace).max())
    verdict = (
        f"Within {format_bytes(budget_bytes)}, {100 * budget_bytes / peak:.0f} % of the peak without a limit, an "
        f"iteration is foreseen to take {format_us(predicted.iteration_us)}, "
        f"{format_share(carried.added).removeprefix('+')} more than with all in memory"
    )
    verdict += f", and the last one took {format_us(measured.iteration_us)}" if measured else ""
    words = ["memfit", "trace", trace.script or "SCRIPT", "-o", "trace.json"]
    head = _head_of(trace, budget_bytes, f"{verdict}: {_moves(carried)}", words)
    return _page(trace, machine, head, carried, lanes, asked)


def _page(
    trace: Trace, machine: Machine, head: Head, carried: Carried | None, lanes: Sequence[Lane], asked: Asked
) -> Page:
    made = carried.made if carried else Transformed.unchanged(trace)
    own = lifetimes_of_trace(trace)
    return Page(
        trace=trace,
        head=head,
        live=live_by_category(trace),
        arena=_arena(carried) if carried else None,
        boxes=boxes_of(made, carried.plan if carried else None, asked.effort),
        owners=owners(trace),
        gaps=_gaps(trace, carried),
        plan=carried.plan if carried else None,
        lanes=lanes,
        what_if=_what_if(trace, machine, asked.points, asked.effort) if asked.points > 1 else None,
        changes=changes(*asked.against, own) if asked.against else None,
        run=asked.run,
    )


def _head(trace: Trace, carried: Carried | None, file: str, run_bytes: int | None) -> Head:
    if carried is None:
        peak, floor = int(load_bytes(trace).max()), floor_of(trace).budget_bytes
        verdict = f"The peak is {format_bytes(peak)}, and {format_bytes(floor)} would do with swaps"
        return _head_of(trace, run_bytes, verdict, ["memfit", "report", file, "--budget", "60%", "-o", "report.html"])
    budget, peak = carried.plan.budget_bytes, int(load_bytes(trace).max())
    verdict = (
        f"Within {format_bytes(budget)}, {100 * budget / peak:.0f} % of its peak, the plan adds "
        f"{format_share(carried.added).removeprefix('+')} to the iteration's time: {_moves(carried)}"
    )
    return _head_of(trace, budget, verdict, ["memfit", "run", "--budget", str(budget), trace.script or "SCRIPT"])


def _head_of(trace: Trace, budget_bytes: int | None, verdict: str, words: Sequence[str]) -> Head:
    load, floor = load_bytes(trace), floor_of(trace)
    peak_op = int(load.argmax())
    return Head(int(load[peak_op]), op_info(trace, peak_op), floor.budget_bytes, op_info(trace, floor.op), budget_bytes,
                verdict, shlex.join(words))  # fmt: skip


def _moves(carried: Carried) -> str:
    return f"{len(carried.plan.swaps)} swaps and {len(carried.recomputes)} recomputes"


def _arena(carried: Carried) -> Int64Array:
    """Return what the plan has in the arena, by op: the most in the op itself and in what runs again before it."""
    resident = np.array(carried.timeline.resident_bytes, dtype=np.int64)
    most = np.zeros(len(carried.trace.ops), dtype=np.int64)
    np.maximum.at(most, next_original(carried.made, len(most)), resident)
    return most


def _gaps(trace: Trace, carried: Carried | None) -> dict[int, GapRow]:
    """Return, by storage, the gap in which it leaves, or the widest that it has, and the reason for that."""
    if carried is not None:
        found = reasons(carried).items()
        return {storage: GapRow(gap.after, gap.before, gap.duration_us, why.value) for storage, (gap, why) in found}
    widest: dict[int, GapRow] = {}
    for gap in gaps(trace):
        known = widest.get(gap.storage)
        if known is None or known.duration_us < gap.duration_us:
            widest[gap.storage] = GapRow(gap.after, gap.before, gap.duration_us, "")
    return widest


def _what_if(trace: Trace, machine: Machine, points: int, effort: float) -> WhatIf:
    curve = trace_curve(trace, machine, points=points, effort=effort)
    found: Sequence[tuple[int, float]] = [(point.budget_bytes, point.overhead) for point in curve.points]
    return WhatIf(machine.name, [budget for budget, _ in found], [added for _, added in found])

"""A plan's totals, the smallest budget, and what a little more or less memory costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memfit.comparing.explaining.carried import Carried, carried_jointly, carry_out
from memfit.comparing.names import op_info, tensor_info
from memfit.errors import BudgetError
from memfit.ir import Direction, Plan, Trace, align_up
from memfit.machine import GIB, Machine
from memfit.planning.floor import Cause, Need, floor_of, fullest_tick
from memfit.planning.joint.arrange import remakings
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import time_bound
from memfit.planning.lifetimes import births, live_after
from memfit.reporting.explain import Explanation, FloorInfo, LineRow, NeedInfo, Outcome, PlanFigures
from memfit.simulate import load_bytes

KEPT, SWAPPED, RECOMPUTED = "kept", "swapped", "recomputed"
_TOP_LINES = 5
_Row = tuple[str, int, int, float]
"""A decision, a storage, its bytes, and the microseconds that it adds."""


def plan_for(trace: Trace, machine: Machine, budget_bytes: int, *, effort: float) -> tuple[Carried, float | None]:
    """Return memfit's joint plan, and its time bound as a part of the computation; raises BudgetError without one."""
    found = plan_jointly(trace, machine, budget_bytes, effort=effort)
    return carried_jointly(trace, machine, found), _part(found.bound.added_us, found.compute_us)


def plan_given(trace: Trace, machine: Machine, plan: Plan) -> tuple[Carried, float | None]:
    """Return `plan`, checked and carried out, and the time bound of its budget.

    Raises InputError for a plan of another trace, and MemfitError for one that breaks a promise.
    """
    carried = carry_out(trace, machine, plan)
    return carried, _part(time_bound(trace, machine, plan.budget_bytes).added_us, carried.compute_us)


def explain_plan(
    trace: Trace, machine: Machine, budget_bytes: int, *, plan: Plan | None = None, effort: float = 0.5
) -> Explanation:
    """Explain a plan, or the lack of one.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        plan: The plan; None for memfit's own.
        effort: The seconds of each search for swaps, in plans that are made here.

    Returns:
        The explanation. A budget that no plan meets has one too: what sets the smallest one.
    """
    figures, refused = None, ""
    try:
        planned = plan_for(trace, machine, budget_bytes, effort=effort) if plan is None else None
        found = planned or plan_given(trace, machine, plan)  # type: ignore[arg-type]
        neighbours = _neighbours(trace, machine, _outcome(*found), effort)
        figures = _figures(*found, neighbours)
    except BudgetError as error:
        refused = str(error)
    load = load_bytes(trace)
    peak_op = op_info(trace, int(load.argmax()))
    return Explanation(
        trace.script, machine.name, budget_bytes, int(load.max()), peak_op, _floor(trace), figures, refused
    )


def _floor(trace: Trace) -> FloorInfo:
    floor = floor_of(trace)
    used = {*trace.ops[floor.op].reads, *trace.ops[floor.op].writes}
    born_in = births(trace)
    at_op = (n for n in floor.needs if n.storage in used or born_in.get(n.storage) == floor.op)
    return FloorInfo(
        floor.budget_bytes,
        op_info(trace, floor.op),
        sum(need.held_bytes for need in at_op),
        floor.pinned_bytes,
        tuple(NeedInfo(tensor_info(trace, n.storage), n.held_bytes, _cause(trace, n)) for n in floor.needs),
    )


def _cause(trace: Trace, need: Need) -> str:
    line = trace.storages[need.storage].pinned_by
    return f"{need.cause.value}, asked for at {line}" if need.cause is Cause.PINNED and line else need.cause.value


def _neighbours(trace: Trace, machine: Machine, at: Outcome, effort: float) -> tuple[Outcome, ...]:
    """Return the outcomes at a step less and a step more: 1 GiB, or a tenth of the peak if that is less."""
    peak = int(load_bytes(trace).max())
    step = max(min(GIB, peak // 10), 1)
    less, more = at.budget_bytes - step, min(at.budget_bytes + step, peak)
    found = [_outcome_at(trace, machine, less, effort)] if less > 0 else []
    if more > at.budget_bytes:
        found.append(no_worse(_outcome_at(trace, machine, more, effort), at))
    return tuple(found)


def no_worse(more: Outcome, at: Outcome) -> Outcome:
    """Return the outcome at more memory, where the plan for less serves too, and may be better than what was found."""
    if more.added is not None and at.added is not None and more.added <= at.added:
        return more
    return replace(at, budget_bytes=more.budget_bytes, bound=more.bound)


def _outcome_at(trace: Trace, machine: Machine, budget_bytes: int, effort: float) -> Outcome:
    try:
        return _outcome(*plan_for(trace, machine, budget_bytes, effort=effort))
    except BudgetError:
        compute_us = sum(op.duration_us for op in trace.ops)
        bound = time_bound(trace, machine, budget_bytes)
        return Outcome(budget_bytes, None, None, None, _part(bound.added_us, compute_us))


def _outcome(carried: Carried, bound: float | None) -> Outcome:
    compute_us = carried.compute_us
    waits, reruns = (_part(us, compute_us) for us in (carried.timeline.stall_us, carried.rerun_us))
    return Outcome(carried.plan.budget_bytes, carried.added, waits, reruns, bound)


def _part(us: float, compute_us: float) -> float | None:
    if us == float("inf"):
        return None
    return us / compute_us if compute_us else 0.0


def _figures(carried: Carried, bound: float | None, neighbours: tuple[Outcome, ...]) -> PlanFigures:
    at_peak = list(_at_peak(carried))
    sizes = [(one.returns, carried.trace.storages[one.storage].size_bytes) for one in carried.recomputes]
    remade, gone = ([size for returns, size in sizes if returns is wanted] for wanted in (True, False))
    kept, swapped, recomputed = (
        sum(size for decision, _, size, _ in at_peak if decision == wanted) for wanted in (KEPT, SWAPPED, RECOMPUTED)
    )
    return PlanFigures(
        policy=carried.plan.policy,
        kept_bytes=kept + carried.trace.pinned_bytes,
        swapped_bytes=swapped,
        recomputed_bytes=recomputed,
        swaps=len(carried.plan.swaps),
        bytes_out=carried.timeline.copied_bytes(Direction.OUT),
        remakings=len(remade),
        remade_bytes=sum(remade),
        drops_for_good=len(gone),
        bytes_for_good=sum(gone),
        reruns=sum(len(made.ops) for made in remakings(carried.recomputes)),
        compute_us=carried.compute_us,
        wait_us=carried.timeline.stall_us,
        rerun_us=carried.rerun_us,
        at_budget=_outcome(carried, bound),
        neighbours=neighbours,
        lines=tuple(_lines(carried, [*_absences(carried), *(row for row in at_peak if row[0] == KEPT)])),
    )


def _at_peak(carried: Carried) -> Iterator[_Row]:
    """Yield the storages that are live in the fullest op, without plan, and what the plan does with each then."""
    trace, count = carried.trace, len(carried.made.op_of)
    op = int(load_bytes(trace).argmax())
    at = carried.place[op]
    away = {
        carried.storage_of(number)
        for number, swap in enumerate(carried.plan.swaps)
        if swap.free_by <= at < swap.in_start or swap.free_by <= at + count < swap.in_start
    }
    dropped = {one.storage for one in carried.recomputes if one.after < op < one.before}
    for storage in live_after(trace, fullest_tick(trace, op)):
        held = align_up(trace.storages[storage].size_bytes, trace.alignment)
        decision = RECOMPUTED if storage in dropped else SWAPPED if storage in away else KEPT
        yield decision, storage, held, 0.0


def _absences(carried: Carried) -> Iterator[_Row]:
    """Yield every swap and every remaking."""
    waits = carried.wait_us()
    for number, swap in enumerate(carried.plan.swaps):
        yield SWAPPED, carried.storage_of(number), swap.size_bytes, waits.get(number, 0.0)
    for one in carried.recomputes:
        yield RECOMPUTED, one.storage, carried.trace.storages[one.storage].size_bytes, carried.again_us[one]


def _lines(carried: Carried, rows: Iterable[_Row]) -> Iterator[LineRow]:
    """Yield the lines of the most bytes for each decision."""
    trace, makers = carried.trace, births(carried.trace)
    groups: dict[tuple[str, str, str], list[_Row]] = defaultdict(list)
    for row in rows:
        storage = trace.storages[row[1]]
        if storage.size_bytes:
            groups[row[0], storage.category.value, storage.source].append(row)
    found = [(sum(row[2] for row in group), key, group) for key, group in groups.items()]
    found.sort(key=lambda each: (-each[0], each[1]))
    for decision in (SWAPPED, RECOMPUTED, KEPT):
        for size_bytes, _, group in [each for each in found if each[1][0] == decision][:_TOP_LINES]:
            largest = min(group, key=lambda row: (-row[2], row[1]))[1]
            made_by = trace.ops[makers[largest]].name if largest in makers else ""
            added_us = sum(row[3] for row in group)
            yield LineRow(decision, tensor_info(trace, largest), made_by, len(group), size_bytes, added_us)

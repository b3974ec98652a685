"""Added time against memory: plans at each of a row of budgets, with recomputation and by swaps alone."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap import plan_at_no_cost, plan_under_budget, smallest_budget
from memfit.planning.joint.plan import joint_effort, plan_jointly
from memfit.progress import part
from memfit.reporting.curve import Curve, Point
from memfit.simulate import load_bytes

_FREE = 4  # times the effort is for the least memory at which nothing waits


def trace_curve(trace: Trace, machine: Machine, *, points: int = 12, effort: float = 0.5) -> Curve:
    """Return the curve of `trace` at `points` budgets between its peak and its least; `effort` in seconds a search."""
    peak, least = int(load_bytes(trace).max()), smallest_budget(trace)[0]
    with part(_FREE * effort):
        free_plan = plan_at_no_cost(trace, machine, effort=_FREE * effort)
    free = Point(free_plan.plan.budget_bytes, free_plan.timeline.overhead)
    steps = max(points - 1, 1)
    budgets = sorted({least + (peak - least) * step // steps for step in range(points)}, reverse=True)

    def swapped(budget_bytes: int) -> float:
        with part(effort):
            return plan_under_budget(trace, machine, budget_bytes, effort=effort).timeline.overhead

    def joint(budget_bytes: int) -> float:
        with part(joint_effort(trace, effort)):
            if budget_bytes >= free.budget_bytes:
                return free.overhead
            try:
                return plan_jointly(trace, machine, budget_bytes, effort=effort).overhead
            except BudgetError:  # rounding may fail where swaps alone fit
                return float("inf")

    swaps = _falling([Point(budget, swapped(budget)) for budget in budgets], free)
    both = _falling([Point(p.budget_bytes, min(joint(p.budget_bytes), p.overhead)) for p in swaps], free)
    return Curve(machine.name, peak, least, free, tuple(both), tuple(swaps))


def curve_effort(trace: Trace, points: int, effort: float) -> float:
    """Return the seconds of all searches of a curve."""
    return _FREE * effort + points * (effort + joint_effort(trace, effort))


def _falling(points: Sequence[Point], free: Point) -> list[Point]:
    """Return the points with the best plan known for each: one for less memory serves for more."""
    falling: list[Point] = []
    best = float("inf")
    for point in reversed(points):
        known = [best, point.overhead, *([free.overhead] if free.budget_bytes <= point.budget_bytes else [])]
        best = min(known)
        falling.insert(0, Point(point.budget_bytes, best))
    return falling

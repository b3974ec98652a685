"""A policy that recomputes on one trace at one budget: planned, checked and timed."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from memfit.baselines.recomputing import find_recompute_policy
from memfit.errors import BudgetError
from memfit.ir import Direction, Trace
from memfit.machine import Machine
from memfit.planning.joint.judged import judged


@dataclass(frozen=True, slots=True)
class RecomputeCell:
    """The figures of one policy at one budget.

    Attributes:
        policy: The name of the policy.
        budget_bytes: The budget.
        added_us: The microseconds that the plan adds: ops that run again, and waits; None if there is no plan.
        overhead: The same as a part of the computation.
        peak_bytes: The most that the arena holds.
        again_us: The microseconds of the ops that run again.
        copied_bytes: The bytes copied, both ways.
        required_bytes: Without a plan, the budget that the policy says it needs.
        seconds: The time that planning took.
    """

    policy: str
    budget_bytes: int
    added_us: float | None = None
    overhead: float | None = None
    peak_bytes: int = 0
    again_us: float = 0.0
    copied_bytes: int = 0
    required_bytes: int | None = None
    seconds: float = 0.0


def judge(trace: Trace, machine: Machine, budget_bytes: int, name: str) -> RecomputeCell:
    """Plan by one policy; check values, swaps and bytes; and time the plan.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        name: The name of the policy.

    Returns:
        The figures.

    Raises:
        InvalidRemakingsError: An op would read other values.
        InvalidSwapsError: The swaps break a promise, or the bytes exceed the budget.
    """
    begin = perf_counter()
    try:
        found = find_recompute_policy(name)(trace, machine, budget_bytes)
    except BudgetError as error:
        return RecomputeCell(name, budget_bytes, required_bytes=error.required_bytes, seconds=perf_counter() - begin)
    seconds = perf_counter() - begin
    result = judged(trace, machine, found)
    return RecomputeCell(
        name,
        budget_bytes,
        result.added_us,
        result.overhead,
        result.timeline.peak_bytes,
        result.again_us,
        sum(result.timeline.copied_bytes(direction) for direction in Direction),
        None,
        seconds,
    )

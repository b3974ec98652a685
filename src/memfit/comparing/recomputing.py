"""A policy that recomputes on one trace at one budget: planned, checked and timed."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from memfit.baselines.recomputing import find_recompute_policy
from memfit.baselines.recomputing.policy import carried_out
from memfit.errors import BudgetError
from memfit.ir import Direction, Trace
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.simulate import simulate
from memfit.validate_joint import require_valid_joint
from memfit.validate_plan import require_valid_plan


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
    made = carried_out(trace, found)
    require_valid_joint(corrected(trace), made)
    require_valid_plan(made.trace, found.plan)
    timeline = simulate(made.trace, machine, found.plan)
    compute_us = sum(op.duration_us for op in trace.ops)
    added_us = timeline.iteration_us - compute_us
    return RecomputeCell(
        name,
        budget_bytes,
        added_us,
        added_us / compute_us if compute_us else 0.0,
        timeline.peak_bytes,
        timeline.compute_us - compute_us,
        sum(timeline.copied_bytes(direction) for direction in Direction),
        None,
        seconds,
    )

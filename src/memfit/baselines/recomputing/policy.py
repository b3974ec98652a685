"""The plans of policies that recompute: functions like those of `baselines.policies`, with recomputes beside swaps."""

from __future__ import annotations

from collections.abc import Iterable

from memfit.baselines.policies.policy import plan_of_swaps, plan_that_waits_for_room
from memfit.ir import Plan, Recompute, Swap, Trace
from memfit.machine import Machine
from memfit.planning.joint.as_plan import joined
from memfit.planning.joint.transformed import Transformed


def mixed(
    name: str,
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    recomputes: Iterable[Recompute],
    made: Transformed,
    swaps: Iterable[Swap],
) -> Plan:
    """Return the plan of `recomputes`, and of `swaps` on the trace `made` of them.

    Raises BudgetError if these do not fit.
    """
    return joined(trace, tuple(recomputes), made, plan_of_swaps(name, made.trace, machine, budget_bytes, swaps))


def mixed_that_waits_for_room(
    name: str,
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    recomputes: Iterable[Recompute],
    made: Transformed,
    swaps: Iterable[Swap],
) -> Plan:
    """Return the same with each copy out waited for only where its room is needed."""
    alone = plan_that_waits_for_room(name, made.trace, machine, budget_bytes, swaps)
    return joined(trace, tuple(recomputes), made, alone)

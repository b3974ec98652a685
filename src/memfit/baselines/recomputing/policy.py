"""The plans of policies that recompute: functions like those of `baselines.policies`, with recomputes beside swaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memfit.baselines.policies.policy import plan_of_swaps
from memfit.ir import Plan, Recompute, Swap, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.joint.as_plan import joined


def mixed(
    name: str,
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    recomputes: Iterable[Recompute],
    made: Transformed,
    swaps: Iterable[Swap],
    planned: Callable[[str, Trace, Machine, int, Iterable[Swap]], Plan] = plan_of_swaps,
) -> Plan:
    """Return the plan of `recomputes`, and of `swaps` on the trace `made` of them.

    `planned` makes the plan of the swaps alone: `plan_that_waits_for_room` waits for copies out as late as it can.

    Raises BudgetError if these do not fit.
    """
    return joined(trace, tuple(recomputes), made, planned(name, made.trace, machine, budget_bytes, swaps))

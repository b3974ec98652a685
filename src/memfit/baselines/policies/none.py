"""No swapping at all."""

from __future__ import annotations

from memfit.baselines.policies.policy import plan_of_swaps
from memfit.ir import Plan, Trace
from memfit.machine import Machine


def none(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return a plan without swaps; raises BudgetError below the peak."""
    return plan_of_swaps("none", trace, machine, budget_bytes, ())

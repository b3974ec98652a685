"""memfit's own planner, by the interface of the others."""

from __future__ import annotations

from memfit.ir import Plan, Trace
from memfit.machine import Machine
from memfit.planning.autoswap import plan_under_budget


def memfit_policy(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return memfit's plan; raises BudgetError if swapping cannot meet the budget."""
    return plan_under_budget(trace, machine, budget_bytes).plan

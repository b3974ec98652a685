"""memfit's own joint planner, by the interface of the others."""

from __future__ import annotations

from memfit.ir import Plan, Trace
from memfit.machine import Machine
from memfit.planning.joint.as_plan import as_plan
from memfit.planning.joint.plan import plan_jointly


def memfit_joint(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return memfit's joint plan; raises BudgetError if none is found."""
    return as_plan(trace, plan_jointly(trace, machine, budget_bytes))

"""memfit's own joint planner, by the interface of the others."""

from __future__ import annotations

from memfit.baselines.recomputing.policy import MixedPlan
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.joint.plan import plan_jointly

_EFFORT = 0.5
"""Seconds of counted work of all searches."""


def memfit_joint(trace: Trace, machine: Machine, budget_bytes: int) -> MixedPlan:
    """Return memfit's joint plan; raises BudgetError if none is found."""
    plan = plan_jointly(trace, machine, budget_bytes, effort=_EFFORT)
    return MixedPlan(plan.recomputes, plan.swaps.plan)

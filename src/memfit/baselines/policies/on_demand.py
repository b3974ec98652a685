"""Evict when an op does not fit, fetch when a storage is used: the least a runtime can do, and its best victims."""

from __future__ import annotations

from memfit.baselines.policies.policy import all_gaps, plan_of_swaps
from memfit.baselines.policies.reactive import Reactive
from memfit.ir import Plan, Trace
from memfit.machine import Machine


def on_demand_lru(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that evicts what was used least recently; raises BudgetError if an op cannot fit."""
    reactive = Reactive(trace, all_gaps(trace), lambda _gap, last, _next: -last)
    return plan_of_swaps("on-demand-lru", trace, machine, budget_bytes, reactive.swaps(budget_bytes))


def on_demand_clairvoyant(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that evicts what is used last from now on; raises BudgetError if an op cannot fit."""
    reactive = Reactive(trace, all_gaps(trace), lambda _gap, _last, next_: next_)
    return plan_of_swaps("on-demand-clairvoyant", trace, machine, budget_bytes, reactive.swaps(budget_bytes))

"""Managed memory as it is: chunks come in when they are touched, the block used longest ago makes room."""

from __future__ import annotations

from memfit.baselines.paging.managed import Managed
from memfit.baselines.paging.policy import PagedRun
from memfit.ir import Trace
from memfit.machine import Machine


def um_naive(trace: Trace, machine: Machine, budget_bytes: int) -> PagedRun:
    """Return the second iteration; raises BudgetError if a block does not fit."""
    managed = Managed.of(trace, machine, budget_bytes, iterations=2)
    return managed.finished("um-naive", managed.run())

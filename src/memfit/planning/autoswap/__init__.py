"""AutoSwap: which storages leave the arena when they are idle, and when they come back."""

from memfit.planning.autoswap.candidates import ANY_GAP, Thresholds, candidates
from memfit.planning.autoswap.place import plan_with_addresses, stays_of_trace, with_footprint
from memfit.planning.autoswap.search import (
    SwapPlan,
    plan_at_no_cost,
    plan_under_budget,
    smallest_budget,
    too_small,
)

__all__ = [
    "ANY_GAP",
    "SwapPlan",
    "Thresholds",
    "candidates",
    "plan_at_no_cost",
    "plan_under_budget",
    "plan_with_addresses",
    "smallest_budget",
    "stays_of_trace",
    "too_small",
    "with_footprint",
]

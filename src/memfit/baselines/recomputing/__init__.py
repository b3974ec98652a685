"""Other systems' policies that recompute, and perhaps swap, planned on a trace and judged by the same simulator."""

from memfit.baselines.recomputing.registry import RECOMPUTE_POLICIES, SMALL_GRAPHS, find_recompute_policy

__all__ = ["RECOMPUTE_POLICIES", "SMALL_GRAPHS", "find_recompute_policy"]

"""Other systems' swap policies, planned on a trace and judged by the same simulator."""

from memfit.baselines.policies.policy import Policy
from memfit.baselines.policies.registry import OPTIONAL, POLICIES, find_policy

__all__ = ["OPTIONAL", "POLICIES", "Policy", "find_policy"]

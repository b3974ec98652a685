"""Systems that leave it to managed memory what is in the device's memory: they plan no swaps, and meet any budget."""

from memfit.baselines.paging.policy import PagedRun, PagingPolicy
from memfit.baselines.paging.registry import PAGING

__all__ = ["PAGING", "PagedRun", "PagingPolicy"]

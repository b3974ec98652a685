"""Other systems' allocators, replayed on a stream of mallocs and frees."""

from memfit.baselines.allocators.registry import ALLOCATORS, PLANNERS, allocator_names, run_allocator
from memfit.baselines.allocators.replay import AllocatorOutcome, replay

__all__ = ["ALLOCATORS", "PLANNERS", "AllocatorOutcome", "allocator_names", "replay", "run_allocator"]

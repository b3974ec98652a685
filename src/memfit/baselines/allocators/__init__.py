"""Other systems' allocators, replayed on a stream of mallocs and frees."""

from memfit.baselines.allocators.registry import ALLOCATORS, PLANNERS, names, run
from memfit.baselines.allocators.replay import Outcome, replay

__all__ = ["ALLOCATORS", "PLANNERS", "Outcome", "names", "replay", "run"]

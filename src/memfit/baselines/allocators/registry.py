"""Every replayed allocator by the name the command line uses."""

from __future__ import annotations

from collections.abc import Callable

from memfit.baselines.allocators.bfc import Bfc
from memfit.baselines.allocators.cnmem import CnMem
from memfit.baselines.allocators.none import NoPool, whole_pages
from memfit.baselines.allocators.profile_guided import profile_guided
from memfit.baselines.allocators.pytorch import PyTorchCaching
from memfit.baselines.allocators.pytorch_expandable import PyTorchExpandable
from memfit.baselines.allocators.replay import Allocator, AllocatorOutcome, Planner, replay, replay_planner
from memfit.baselines.allocators.smartpool import smartpool
from memfit.baselines.allocators.superneurons import SuperNeurons
from memfit.events import MallocStream

ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "none": NoPool,
    "none-pages": whole_pages,
    "cnmem": CnMem,
    "pytorch": PyTorchCaching,
    "pytorch-expandable": PyTorchExpandable,
    "bfc": Bfc,
    "superneurons": SuperNeurons,
}
"""The allocators that answer one request at a time."""

PLANNERS: dict[str, Planner] = {
    "profile-guided": profile_guided,
    "smartpool": smartpool,
}
"""The planners that know the whole stream beforehand."""


def allocator_names() -> tuple[str, ...]:
    """Return the name of every allocator, as `run_allocator` takes it."""
    return (*ALLOCATORS, *PLANNERS)


def run_allocator(name: str, events: MallocStream) -> AllocatorOutcome:
    """Return the cost of `events` in the allocator `name`; raises KeyError for an unknown name."""
    if name in PLANNERS:
        return replay_planner(name, PLANNERS[name], events)
    return replay(name, ALLOCATORS[name](), events)

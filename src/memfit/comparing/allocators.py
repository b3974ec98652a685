"""One file's mallocs and frees in every allocator, memfit's own packer among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from memfit.baselines.allocators import AllocatorOutcome, allocator_names, run_allocator
from memfit.baselines.allocators.replay import PlannedOffsets, replay_planner
from memfit.comparing.choice import choose
from memfit.events import MallocStream, live_after_steps
from memfit.planning.packing import Lifetimes, pack
from memfit.reporting.allocators import AllocatorComparison, AllocatorRow


def memfit_packer(events: MallocStream, *, alignment: int = 1, effort: float = 1.0) -> PlannedOffsets:
    """Place every storage with memfit's own packer; at exact sizes, as the other planners do, unless told otherwise.

    `alignment` in bytes, `effort` in seconds.
    """
    steps = np.array(events.steps, dtype=np.int64)
    lower, upper = (np.full(len(events.sizes), len(steps), dtype=np.int64) for _ in range(2))
    lower[steps[steps >= 0]] = np.flatnonzero(steps >= 0)
    upper[~steps[steps < 0]] = np.flatnonzero(steps < 0)
    rows = np.flatnonzero(lower < len(steps))  # storages of no bytes take no step
    size = np.array(events.sizes, dtype=np.int64)[rows]
    packing = pack(Lifetimes(lower[rows], upper[rows], size), alignment=alignment, effort=effort)
    offsets = dict(zip(rows.tolist(), packing.offsets.tolist(), strict=True))
    return PlannedOffsets(offsets, packing.footprint, 0, len(steps))


CONTENDERS: Mapping[str, Callable[[MallocStream], AllocatorOutcome]] = {
    **{name: partial(run_allocator, name) for name in allocator_names()},
    "memfit": partial(replay_planner, "memfit", memfit_packer),
}
"""Every allocator that can be compared, by name."""


def choose_allocators(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for an unknown one."""
    return choose(text, "allocator", all_=tuple(CONTENDERS))


def compare_allocators(file: str, events: MallocStream, allocators: Sequence[str]) -> AllocatorComparison:
    """Return the cost of `events` in each of `allocators`; raises KeyError for an unknown name."""
    rows = [_row(CONTENDERS[name](events)) for name in allocators]
    return AllocatorComparison(
        file=file,
        storages=len(events.sizes),
        calls=len(events.steps),
        peak_live_bytes=max(live_after_steps(events), default=0),
        rows=tuple(sorted(rows, key=lambda row: (row.footprint_bytes, row.allocator))),
    )


def _row(outcome: AllocatorOutcome) -> AllocatorRow:
    return AllocatorRow(
        allocator=outcome.allocator,
        footprint_bytes=outcome.footprint_bytes,
        over_peak=outcome.over_peak,
        fragmentation=outcome.fragmentation,
        driver_allocations=outcome.driver_allocations,
        us_per_call=outcome.us_per_call,
    )

"""SmartPool as published (arXiv 1903.06631 and its authors' code): finds the iteration, then places by size.

It watches mallocs and frees until a long segment has repeated itself, and packs the variables of that segment. What
crosses into the next iteration gets two slots, since the next instance is allocated before the old one is freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from memfit.arrays import Int64Array
from memfit.baselines.allocators.repeats import longest_repeat
from memfit.baselines.allocators.replay import PlannedOffsets
from memfit.events import MallocStream

_CHECK_EVERY = 300  # events; and the first check
_SHORTEST_ITERATION = 100  # events; an iteration must be longer
_SHORTEST_PART = 50  # events; a repeat inside the segment must be longer to be taken for the iteration


@dataclass(frozen=True, slots=True)
class Decision:
    """The detector's decision: made after event `event`, for the iteration of `length` events from event `start` on."""

    event: int
    start: int
    length: int


def detect(events: MallocStream) -> Decision | None:
    """Return the published detector's decision; None if the stream ends before it makes one.

    It sits in malloc and looks at the stream so far at every 300th event that is one, but only once the stream has
    doubled since it last did.
    """
    tokens = iteration_tokens(events)
    checkpoint = _CHECK_EVERY
    for event in range(_CHECK_EVERY - 1, len(tokens), _CHECK_EVERY):
        if events.steps[event] < 0 or event + 2 <= checkpoint:
            continue
        checkpoint *= 2
        found = _iteration(tokens[: event + 1])
        if found is not None:
            return Decision(event, *found)
    return None


def iteration_tokens(events: MallocStream) -> Int64Array:
    """Return the stream as numbers that recur with the iteration: a malloc's size, a free's distance to its malloc."""
    born: dict[int, int] = {}
    tokens = np.empty(len(events.steps), dtype=np.int64)
    for event, step in enumerate(events.steps):
        if step >= 0:
            born[step] = event
            tokens[event] = events.sizes[step]
        else:
            tokens[event] = event - born[~step]
    return tokens


def _iteration(tokens: Int64Array) -> tuple[int, int] | None:
    found = longest_repeat(tokens)
    if found is None:
        return None
    start, length = found
    # The longest segment may be several iterations.
    part = longest_repeat(tokens[start : start + length])
    if part is not None and part[1] > _SHORTEST_PART:
        start, length = start + part[0], part[1]
    return (start, length) if length > _SHORTEST_ITERATION else None


def smartpool(events: MallocStream) -> PlannedOffsets:
    """Place one iteration of `events`: the detector's, or all there is after the start if it finds none that lasts.

    The iteration's variables lie in a pool; what lives throughout lies above it at its exact size.
    """
    begin, end = _iteration_steps(events)
    variables = _Variables.of(events, begin, end)
    crossing, slot_bytes = _best_fit(events, variables.crossing, variables, 0)
    inner, pool_bytes = _best_fit(events, variables.inner, variables, 2 * slot_bytes)
    offsets = crossing | inner
    for storage in variables.outside:
        offsets[storage] = pool_bytes
        pool_bytes += events.sizes[storage]
    return PlannedOffsets(offsets, pool_bytes, begin, end)


def _iteration_steps(events: MallocStream) -> tuple[int, int]:
    """Return the steps [begin, end) to plan on.

    In a file of one iteration the detector takes its equal layers for iterations: what it decides on is then no
    measure of the file, and the whole file is the iteration.
    """
    decision = detect(events)
    if decision is not None and _lasts(iteration_tokens(events), decision):
        return decision.start, decision.start + decision.length
    return events.initial, len(events.steps)


def _lasts(tokens: Int64Array, decision: Decision) -> bool:
    """Return whether most of what follows repeats one iteration later."""
    after = tokens[decision.start :]
    return bool(np.mean(after[: -decision.length] == after[decision.length :]) > 0.5)


@dataclass(slots=True)
class _Variables:
    """The storages of steps [begin, end) by what becomes of them; `born` and `freed` are steps."""

    end: int
    inner: list[int] = field(default_factory=list)
    crossing: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)
    born: dict[int, int] = field(default_factory=dict)
    freed: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(events: MallocStream, begin: int, end: int) -> _Variables:
        variables = _Variables(end)
        for event in range(begin, end):
            step = events.steps[event]
            if step >= 0:
                variables.born[step] = event
            else:
                variables.freed[~step] = event
        for storage in variables.born:
            (variables.inner if storage in variables.freed else variables.crossing).append(storage)
        variables.outside = list(_outside(events, variables, begin))
        return variables


def _outside(events: MallocStream, variables: _Variables, begin: int) -> Iterable[int]:
    """Yield what is alive at the beginning and has no place in the pool.

    What is freed in it is the last instance of a variable that crosses, in its other slot: if there is one.
    """
    alive: dict[int, None] = {}
    for step in events.steps[:begin]:
        if step >= 0:
            alive[step] = None
        else:
            del alive[~step]
    slots = Counter(events.sizes[v] for v in variables.crossing)
    for storage in alive:
        size_bytes = events.sizes[storage]
        if storage in variables.freed and slots[size_bytes]:
            slots[size_bytes] -= 1
        else:
            yield storage


def _best_fit(
    events: MallocStream, storages: list[int], variables: _Variables, base: int
) -> tuple[dict[int, int], int]:
    """Place `storages` from `base` upwards, the largest first, then the earliest; return the top as well.

    Each takes the smallest gap that fits between those placed that live at the same time, otherwise the place above.
    """
    placed = _Placed(len(storages))
    offsets: dict[int, int] = {}
    top = base
    for storage in sorted(storages, key=lambda v: (-events.sizes[v], variables.born[v])):
        lower, upper = variables.born[storage], variables.freed.get(storage, variables.end)
        size_bytes = events.sizes[storage]
        offsets[storage] = placed.place(lower, upper, size_bytes, base)
        top = max(top, offsets[storage] + size_bytes)
    return offsets, top


class _Placed:
    """The placed blocks so far, as columns in order of offset: lower, upper, offset, end."""

    def __init__(self, capacity: int) -> None:
        self._columns = np.empty((4, capacity), dtype=np.int64)
        self._count = 0

    def place(self, lower: int, upper: int, size_bytes: int, base: int) -> int:
        """Add a lifetime at the smallest gap above `base` that fits, and return its offset."""
        now = self._columns[:, : self._count]
        conflicts = now[:, (now[0] < upper) & (now[1] > lower)]
        below = np.maximum.accumulate(np.concatenate(([base], conflicts[3])))
        gaps = conflicts[2] - below[:-1]
        fits = np.flatnonzero(gaps >= size_bytes)
        offset = int(below[fits[np.argmin(gaps[fits])]] if len(fits) else below[-1])
        self._insert(lower, upper, offset, offset + size_bytes)
        return offset

    def _insert(self, lower: int, upper: int, offset: int, end: int) -> None:
        at = int(np.searchsorted(self._columns[2, : self._count], offset))
        self._columns[:, at + 1 : self._count + 1] = self._columns[:, at : self._count]
        self._columns[:, at] = lower, upper, offset, end
        self._count += 1

"""Profile-guided memory optimisation (Chainer; arXiv 1804.10001): strip packing by best fit on a skyline.

Take the lowest, then leftmost line of the skyline. Of the blocks not placed whose lifetime fits its span, put the
longest (then the largest) on it; if none fits, lift the line to its lower neighbour.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from memfit.baselines.allocators.replay import PlannedOffsets
from memfit.events import MallocStream


def profile_guided(events: MallocStream) -> PlannedOffsets:
    """Place every storage of `events`; what was alive before lives from the start, what outlives it to the end."""
    blocks = _Unplaced(events)
    skyline = _Skyline(0, len(events.steps))
    offsets: dict[int, int] = {}
    while len(offsets) < len(blocks.storages):
        left, right, height = skyline.lowest()
        block = blocks.take(left, right)
        if block is None:
            skyline.lift(left)
            continue
        storage, lower, upper = block
        offsets[storage] = height
        skyline.put(left, lower, upper, height + events.sizes[storage])
    footprint = max((offset + events.sizes[v] for v, offset in offsets.items()), default=0)
    return PlannedOffsets(offsets, footprint, 0, len(events.steps))


class _Unplaced:
    """Blocks in order of their lower time, so that those within a span are a slice, to be looked through."""

    def __init__(self, events: MallocStream) -> None:
        end = len(events.steps)
        freed = {~step: event for event, step in enumerate(events.steps) if step < 0}
        born = [(event, step) for event, step in enumerate(events.steps) if step >= 0]
        self.storages = [step for _, step in born]
        self._lower = np.array([event for event, _ in born], dtype=np.int64)
        self._upper = np.array([freed.get(step, end) for step in self.storages], dtype=np.int64)
        size = np.array([events.sizes[step] for step in self.storages], dtype=np.int64)
        order = np.lexsort((self._lower, -size, self._lower - self._upper))
        self._rank = np.empty(len(born), dtype=np.int64)
        self._rank[order] = np.arange(len(born))
        self._row_of_rank = order

    def take(self, left: int, right: int) -> tuple[int, int, int] | None:
        """Remove the longest block within [left, right); return its storage, lower and upper time."""
        first, last = np.searchsorted(self._lower, (left, right))
        ranks = self._rank[first:last][self._upper[first:last] <= right]
        rank = ranks.min(initial=len(self._rank))
        if rank == len(self._rank):
            return None
        row = self._row_of_rank[rank]
        self._rank[row] = len(self._rank)
        return self.storages[row], int(self._lower[row]), int(self._upper[row])


class _Skyline:
    """Lines that cover the times [left, right), each at a height (bytes); no two neighbours are equally high."""

    def __init__(self, left: int, right: int) -> None:
        self._right = {left: right}
        self._left_of = {right: left}
        self._height = {left: 0}
        self._heap = [(0, left)]

    def lowest(self) -> tuple[int, int, int]:
        """Return left, right and height of the lowest line, the leftmost of equals."""
        while self._height.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)  # a line that is no more, or no longer as high
        height, left = self._heap[0]
        return left, self._right[left], height

    def lift(self, left: int) -> None:
        """Raise a line to its lower neighbour."""
        right = self._right[left]
        before = self._height[self._left_of[left]] if left in self._left_of else None
        after = self._height.get(right)
        self._set(left, right, min(height for height in (before, after) if height is not None))
        self._merge(left)

    def put(self, left: int, lower: int, upper: int, height: int) -> None:
        """Raise [lower, upper), a part of the line that begins at `left`, to `height`."""
        right, ground = self._right[left], self._height[left]
        if left < lower:
            self._set(left, lower, ground)
        if upper < right:
            self._set(upper, right, ground)
        self._set(lower, upper, height)
        self._merge(lower)

    def _set(self, left: int, right: int, height: int) -> None:
        self._right[left] = right
        self._left_of[right] = left
        self._height[left] = height
        heappush(self._heap, (height, left))

    def _merge(self, left: int) -> None:
        """Join the line that begins at `left` with neighbours that are as high."""
        right, height = self._right[left], self._height[left]
        if self._height.get(right) == height:
            del self._height[right]
            right = self._right.pop(right)
        before = self._left_of.get(left)
        if before is not None and self._height[before] == height:
            del self._height[left], self._right[left], self._left_of[left]
            left = before
        self._set(left, right, height)

"""The iteration in segments of time, each of which ends at the fullest op of its slice."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of an iteration that repeats; segment j ends when op `ends[j]` begins, and begins at the end before.

    Memory is looked at during the ops `ends` only: a time bound is still one, if it is lower.

    Attributes:
        ends: The ops, ascending.
        span_us: Microseconds of the ops of each segment.
        count: The number of ops.
    """

    ends: tuple[int, ...]
    span_us: tuple[float, ...]
    count: int

    @classmethod
    def of(cls, duration_us: Float64Array, load_bytes: Int64Array, most: int) -> Segments:
        """Return at most `most` segments of about the same time; each op is an end of its own if they suffice."""
        begin = np.concatenate(([0.0], np.cumsum(duration_us)))
        ends = _fullest(begin, load_bytes, most) if len(load_bytes) > most else list(range(len(load_bytes)))
        spans = np.diff(begin[ends], prepend=begin[ends[-1]] - begin[-1])
        return cls(tuple(ends), tuple(spans.tolist()), len(load_bytes))

    def running(self, op: int) -> int:
        """Return the segment in which `op` runs."""
        return bisect_right(self.ends, op % self.count) % len(self.ends)

    def until(self, op: int) -> int:
        """Return the segment of the time right before `op` begins."""
        return bisect_left(self.ends, op % self.count) % len(self.ends)

    def befores(self, first: int, last: int) -> set[int]:
        """Return the segments of the times right before the ops [first, last] of one iteration."""
        found = range(bisect_left(self.ends, first), bisect_left(self.ends, last) + 1)
        return {segment % len(self.ends) for segment in found}

    def within(self, begin: int, end: int) -> list[int]:
        """Return the segments whose ends are among the ops [begin, end), counted on over the iteration's end."""
        shift = begin // self.count * self.count
        begin, end = begin - shift, end - shift
        low, high = bisect_left(self.ends, begin), bisect_left(self.ends, end)
        again = bisect_left(self.ends, max(end - self.count, 0))
        return [*range(low, high), *range(again)]


def _fullest(begin: Float64Array, load_bytes: Int64Array, most: int) -> list[int]:
    """Return the fullest op of each slice of time."""
    slices = np.minimum((begin[:-1] / max(begin[-1], 1e-12) * most).astype(np.int64), most - 1)
    order = np.lexsort((-load_bytes, slices))
    _, first = np.unique(slices[order], return_index=True)
    return sorted(order[first].tolist())

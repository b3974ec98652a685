"""The gaps worth swapping, as the columns that the native search works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Float64Array, Int64Array
from memfit.ir import Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.lifetimes import Gap, gaps
from memfit.simulate import copies_in_us, copies_out_us

_MOST = 4000


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of candidates: `least_bytes`, `least_us`, and `most` of them, the largest bytes x time first.

    `most` is None for as many as the trace has ops, and no fewer than 4,000.
    """

    least_bytes: int = 1
    least_us: float = 0.0
    most: int | None = None

    def most_of(self, ops: int) -> int:
        """Return how many candidates a trace of so many ops may have at most."""
        return max(_MOST, ops) if self.most is None else self.most


ANY_GAP = Thresholds(most=1 << 62)
"""Every gap of every storage that has bytes."""


def candidates(trace: Trace, thresholds: Thresholds = Thresholds()) -> list[Gap]:  # noqa: B008 (frozen)
    """Return the gaps within `thresholds`, largest bytes x time first; cyclic ones included."""
    found = [
        gap
        for gap in gaps(trace)
        if gap.size_bytes >= max(thresholds.least_bytes, 1) and gap.duration_us >= thresholds.least_us
    ]
    return found[: thresholds.most_of(len(trace.ops))]


def end_of(trace: Trace, gap: Gap) -> int:
    """Return the op of the next use, counted on over the iteration's end."""
    return gap.before + len(trace.ops) * gap.cyclic


def swap_of(trace: Trace, gap: Gap, free_by: int, in_start: int) -> Swap:
    """Return the swap that leaves right after the gap's first op."""
    end = end_of(trace, gap)
    free_by = min(free_by, latest_free_by(trace, gap.storage, end, returns=gap.returns))
    in_start = in_start if gap.returns else end
    return Swap(gap.storage, gap.size_bytes, gap.after, free_by, in_start, end, gap.cyclic, gap.returns)


def latest_free_by(trace: Trace, storage: int, end: int, *, returns: bool) -> int:
    """Return the op before which a storage that is away until `end` has to have left at the latest.

    One that does not return has before the next iteration makes its like.
    """
    one = trace.storages[storage]
    return end if returns or not trace.outlives(one) else min(end, len(trace.ops) + one.alloc)


@dataclass(frozen=True, slots=True, eq=False)
class GapColumns:
    """Candidates as native columns: held bytes, the ops around the gap, microseconds of each copy."""

    size_bytes: Int64Array
    after: Int64Array
    before: Int64Array
    out_us: Float64Array
    in_us: Float64Array

    @classmethod
    def of(cls, trace: Trace, machine: Machine, found: Sequence[Gap]) -> GapColumns:
        """Return the columns of `found`."""
        sizes = [gap.size_bytes for gap in found]
        return cls(
            size_bytes=np.array([align_up(size, trace.alignment) for size in sizes], dtype=np.int64),
            after=np.array([gap.after for gap in found], dtype=np.int64),
            before=np.array([end_of(trace, gap) for gap in found], dtype=np.int64),
            out_us=copies_out_us(trace, machine, found),
            in_us=copies_in_us(trace, machine, found),
        )

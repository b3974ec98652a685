"""The table of lifetimes a packer works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memfit.arrays import Int64Array
from memfit.errors import InputError
from memfit.ir import Trace

FREE = -1
"""The `offset` of a lifetime that may be placed anywhere."""
NOBODY = -1
"""The row whose place a row takes over, where it takes over none."""


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Half-open lifetimes [lower, upper), one row each, as int64 columns of one length.

    Attributes:
        lower: Ticks; the begin of each lifetime.
        upper: Ticks; the end of each lifetime.
        size: Bytes.
        offset: Bytes that fix a row's placement; `FREE` leaves it to the packer, and fills a column that is not given.

    Raises:
        InputError: The columns are not integers of one length.
    """

    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    offset: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.offset) == 0:
            object.__setattr__(self, "offset", np.full(len(self.lower), FREE, dtype=np.int64))
        for name in ("lower", "upper", "size", "offset"):
            object.__setattr__(self, name, _column(name, getattr(self, name)))
        if len({len(self.lower), len(self.upper), len(self.size), len(self.offset)}) > 1:
            remedy = "give every column one value for each row"
            raise InputError("the columns of a table of lifetimes differ in length", remedy=remedy)

    def __len__(self) -> int:
        return len(self.lower)

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int]]) -> Lifetimes:
        """Make the table of (lower, upper, size) rows; lower and upper are ticks, size is bytes."""
        columns = np.array(list(rows), dtype=np.int64).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])


def lifetimes_of(trace: Trace) -> Lifetimes:
    """Make a table of a trace's storages, on the clock of ticks.

    A row begins right after the tick that allocates it and ends right after the tick that frees it, so that a
    storage allocated by the tick after a free may take the bytes. Storages that were alive before the iteration begin
    at 0; storages that outlive it end at `ticks` + 1.

    Arguments:
        trace: The recorded iteration.

    Returns:
        The table, one row for each storage.
    """
    lower = np.fromiter((s.alloc_tick + 1 for s in trace.storages), dtype=np.int64)
    upper = np.fromiter((s.free_tick + 1 for s in trace.storages), dtype=np.int64)
    size = np.fromiter((s.size_bytes for s in trace.storages), dtype=np.int64)
    return Lifetimes(lower, upper, size)


def joined(lifetimes: Lifetimes, over: Int64Array) -> tuple[Lifetimes, Int64Array]:
    """Make one row of rows that take over each other's places.

    Arguments:
        lifetimes: The table; a row that takes over begins when the other ends, and has its size.
        over: For each row the one whose place it takes over, or `NOBODY`.

    Returns:
        The table of the places, and the place of each row.
    """
    first = np.arange(len(lifetimes), dtype=np.int64)
    for row in np.argsort(lifetimes.lower, kind="stable").tolist():  # givers come before takers
        if over[row] != NOBODY:
            first[row] = first[over[row]]
    kept, place = np.unique(first, return_inverse=True)
    upper = lifetimes.upper[kept]
    np.maximum.at(upper, place, lifetimes.upper)
    whole = Lifetimes(lifetimes.lower[kept], upper, lifetimes.size[kept], lifetimes.offset[kept])
    return whole, place.astype(np.int64)


def repeat(lifetimes: Lifetimes, period: int, times: int) -> Lifetimes:
    """Lay out several iterations in a row, to be packed with the period `times` * `period`.

    Instances of one lifetime may then lie elsewhere in each of them. That pays where lifetimes outlive the period:
    otherwise their slots are busy all the time, whether or not an instance is alive.

    Arguments:
        lifetimes: The table of one iteration.
        period: Ticks of one iteration.
        times: The number of iterations.

    Returns:
        The table. Rows keep their order, iteration by iteration.
    """
    shift = np.repeat(np.arange(times, dtype=np.int64) * period, len(lifetimes))
    return Lifetimes(
        np.tile(lifetimes.lower, times) + shift,
        np.tile(lifetimes.upper, times) + shift,
        np.tile(lifetimes.size, times),
        np.tile(lifetimes.offset, times),
    )


def _column(name: str, values: NDArray[np.generic]) -> Int64Array:
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise InputError(f"the column {name!r} of a table of lifetimes is not a list of integers",
                         remedy="pass one integer for each lifetime")  # fmt: skip
    return np.ascontiguousarray(array, dtype=np.int64)

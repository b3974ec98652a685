"""SmartPool under AutoSwap (arXiv 1903.06631): a swapped storage is several stays in the arena, each with an offset.

Time is circular instead of doubled: an iteration follows on itself, and a stay may run over its end. What one moment
is differs: a trace counts ticks and the beginnings of ops (`autoswap.place`), the engine counts what takes bytes
(`addresses`). Both make a table of stays, and from there on nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Swap
from memfit.planning.packing import NOBODY, Lifetimes, Packing, joined, pack, repeat

Span = tuple[int, int]
"""A half-open span of moments."""


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """Row i takes size[i] bytes in [lower[i], upper[i]), on a clock of `period` moments an iteration.

    A stay begins within the iteration and may end in the next one, or later. `iterations` are placed in a row: where
    a stay outlives one, its instances need not have an offset each for all time then. `owner` says whose bytes a row
    is, by the numbers of who made the table. A row with an `over` begins when that row ends, and lies where it does:
    its owner takes over the place (`NOBODY`: it does not; empty: none does).
    """

    owner: Int64Array
    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    period: int
    iterations: int = 1
    over: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int, int]], period: int) -> Stays:
        """Return the table of (owner, lower, upper, size) rows, moved by whole periods to begin in the iteration."""
        columns = np.array(list(rows), dtype=np.int64).reshape(-1, 4)
        shift = columns[:, 1] // period * period
        return cls(columns[:, 0], columns[:, 1] - shift, columns[:, 2] - shift, columns[:, 3], period)

    def __len__(self) -> int:
        return len(self.owner)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedStays:
    """The stays of all `iterations` in a row as lifetimes, and the offsets of each."""

    lifetimes: Lifetimes
    packing: Packing


def place_stays(stays: Stays, *, alignment: int, effort: float, taken: Sequence[Span] = ()) -> PlacedStays:
    """Return offsets for `stays`, aligned to `alignment` bytes; `effort` in seconds.

    They lie around what is `taken` at any time, by offset and size (bytes).
    """
    lifetimes = repeat(Lifetimes(stays.lower, stays.upper, stays.size), stays.period, stays.iterations)
    period = stays.period * stays.iterations
    if not (stays.over != NOBODY).any():
        return PlacedStays(lifetimes, _pack_around(lifetimes, taken, period, alignment, effort))
    shift = np.repeat(np.arange(stays.iterations) * len(stays), len(stays))
    over = np.tile(stays.over, stays.iterations)
    places, place = joined(lifetimes, np.where(over == NOBODY, NOBODY, over + shift))
    return PlacedStays(lifetimes, _for_each(_pack_around(places, taken, period, alignment, effort), place))


def _pack_around(lifetimes: Lifetimes, taken: Sequence[Span], period: int, alignment: int, effort: float) -> Packing:
    """Return the packing of `lifetimes`; its footprint reaches to the end of all that is `taken`."""
    if not taken:
        return pack(lifetimes, alignment=alignment, period=period, effort=effort)
    offsets, sizes = np.array(taken, dtype=np.int64).T
    beside = len(taken)
    whole = Lifetimes(
        np.append(lifetimes.lower, np.zeros(beside, dtype=np.int64)),
        np.append(lifetimes.upper, np.full(beside, period)),
        np.append(lifetimes.size, sizes),
        np.append(lifetimes.offset, offsets),
    )
    packing = pack(whole, alignment=alignment, period=period, effort=effort)
    return replace(packing, slots=packing.slots[:-beside], offsets=packing.offsets[:-beside])


def _for_each(packing: Packing, place: Int64Array) -> Packing:
    """Return the packing of rows of which several may have one place."""
    ends = np.cumsum(packing.slots)
    slots = packing.slots[place]
    offsets = [packing.offsets[ends[p] - packing.slots[p] : ends[p]] for p in place.tolist()]
    return replace(packing, slots=slots, offsets=np.concatenate(offsets))


def stays_of_life(life: Span, absences: Sequence[Span], *, returns: bool = True) -> list[Span]:
    """Return the rest of `life` when `absences`, in their order, are taken out of it.

    A storage that lives in [2, 20) and is away in [5, 9) and [12, 15) stays in [2, 5), [9, 12) and, unless it is away
    for good then, [15, 20).
    """
    moments = [life[0], *(moment for absence in absences for moment in absence), life[1]]
    if not returns:
        moments = moments[:-2]
    return list(zip(moments[::2], moments[1::2], strict=True))


def stays_of_recurring(absences: Sequence[Span], period: int) -> list[Span]:
    """Return the stays of a storage that is the same one in every iteration: from each return to the next leave.

    Away in [5, 9) and [12, 15) of a period of 20, it stays in [9, 12) and, over the end, in [15, 25).
    """
    return [(back, gone) for (_, back), (gone, _) in pairwise([*absences, (absences[0][0] + period, 0)])]


def swaps_by_storage(swaps: Sequence[Swap]) -> dict[int, list[int]]:
    """Return the indices of each storage's swaps, in the order in which it leaves."""
    found: dict[int, list[int]] = {}
    for index in sorted(range(len(swaps)), key=lambda i: swaps[i].out_after):
        found.setdefault(swaps[index].storage, []).append(index)
    return found

"""An address for every allocation of a repeating iteration, as the table the engine hands out addresses from.

The method is SmartPool's (arXiv 1903.06631, section on the memory pool): the k-th allocation of an iteration gets
the k-th address. Time is circular here instead of doubled: a lifetime may run over the iteration's end. Where one
outlives a whole iteration (a batch, until the next has been loaded) the table covers several iterations, so that
its instances need not have a place each for all time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memfit.planning.packing import Lifetimes, pack, repeat

Int64Array = NDArray[np.int64]

_MOST_ITERATIONS = 4  # in a table


@dataclass(frozen=True)
class Allocations:
    """The allocations of one iteration, by ordinal; sizes in bytes. Time is counted in allocations.

    Allocation k is alive from then on and freed before allocation `upper[k]`, which is counted on over the
    iteration's end. One that is still alive when the next iteration ends has upper -1.
    """

    upper: Int64Array
    size: Int64Array

    @property
    def count(self) -> int:
        """The number of allocations in an iteration."""
        return len(self.size)

    @property
    def iterations_outlived(self) -> int:
        """In how many iterations in a row the longest lifetime is alive, leaving out those without an end."""
        length = (self.upper - np.arange(self.count))[self.upper >= 0]
        return max(1, int(-(-length.max(initial=1) // self.count)))


@dataclass(frozen=True)
class AddressPlan:
    """The engine's columns (native/engine/plan.h) for a period of `iterations`; offsets and sizes in bytes.

    `lower_bound_bytes` is the peak of live bytes over the circular time: no table needs less.
    """

    size: list[int]
    slots: list[int]
    slot_offset: list[int]
    due_begin: list[int]
    due_allocation: list[int]
    due_periods_ago: list[int]
    iterations: int
    zone_bytes: int
    lower_bound_bytes: int
    proven: bool


def allocations_of(ticks: Int64Array, marks: Sequence[int]) -> Allocations | None:
    """Return the allocations of the first of two recorded iterations, or None if the second had others.

    `ticks` has a row (block, bytes; negative bytes: a free) for each allocation and free, in order; `marks` are
    the numbers of ticks at which the first iteration began and the two ended.
    """
    begin, middle, end = marks
    first, second = (ticks[a:b, 1][ticks[a:b, 1] > 0] for a, b in ((begin, middle), (middle, end)))
    if not np.array_equal(first, second):
        return None
    block, size = ticks[begin:end, 0], ticks[begin:end, 1]
    allocated_before = np.cumsum(size > 0)
    freed_before = dict(zip(block[size < 0].tolist(), allocated_before[size < 0].tolist(), strict=True))
    blocks = block[size > 0][: len(first)].tolist()
    return Allocations(np.array([freed_before.get(b, -1) for b in blocks], dtype=np.int64), first)


def plan_addresses(allocations: Allocations, *, alignment: int, effort: float) -> AddressPlan:
    """Return a table for `allocations`; `effort` is the most seconds spent on it."""
    times = min(allocations.iterations_outlived, _MOST_ITERATIONS)
    count, period = allocations.count, times * allocations.count
    planned = np.flatnonzero(allocations.upper >= 0)
    size = -(-allocations.size // alignment) * alignment
    once = Lifetimes(planned, allocations.upper[planned], size[planned])
    lifetimes = repeat(once, count, times)
    packing = pack(lifetimes, alignment=alignment, period=period, effort=effort)
    slots = np.zeros(period, dtype=np.int64)
    slots[lifetimes.lower] = packing.slots
    due_begin, due_allocation, due_ago = _due(lifetimes, period)
    return AddressPlan(
        size=np.tile(size, times).tolist(),
        slots=slots.tolist(),
        slot_offset=packing.offsets.tolist(),
        due_begin=due_begin,
        due_allocation=due_allocation,
        due_periods_ago=due_ago,
        iterations=times,
        zone_bytes=packing.footprint,
        lower_bound_bytes=packing.lower_bound,
        proven=packing.proven,
    )


def _due(lifetimes: Lifetimes, period: int) -> tuple[list[int], list[int], list[int]]:
    """Return which allocations' lifetimes end between allocations k-1 and k, for each k and the period's end."""
    ago, before = np.divmod(lifetimes.upper, period)
    order = np.argsort(before, kind="stable")
    begin = np.searchsorted(before[order], np.arange(period + 2))
    return begin.tolist(), lifetimes.lower[order].tolist(), ago[order].tolist()

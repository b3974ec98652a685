"""An address for everything that takes bytes in a repeating iteration, as the table the engine hands them out from.

The method is SmartPool's (arXiv 1903.06631, section on the memory pool): the k-th allocation of an iteration gets
the k-th address. Time is circular here instead of doubled: a lifetime may run over the iteration's end. Where one
outlives a whole iteration (a batch, until the next has been loaded) the table covers several iterations, so that
its instances need not have a place each for all time. A storage that is swapped has a lifetime for each of its stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Swap
from memfit.planning.packing import Lifetimes, pack, repeat

Int64Array = NDArray[np.int64]

_MOST_ITERATIONS = 4  # in a table
ALLOCATION = -1
"""The `swap` of a take that is an allocation."""


@dataclass(frozen=True)
class Takes:
    """What takes bytes in one iteration, in order: allocations, and storages that come back; sizes in bytes.

    Time is counted in takes. The bytes of take k are free again before take `upper[k]`, which is counted on over the
    iteration's end; -1: they still are not when the next iteration ends. `swap[k]` is the swap that take k ends, or
    `ALLOCATION`.
    """

    upper: Int64Array
    size: Int64Array
    swap: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.swap):
            object.__setattr__(self, "swap", np.full(len(self.size), ALLOCATION))

    @property
    def count(self) -> int:
        """The number of takes in an iteration."""
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
    swap: list[int]
    slots: list[int]
    slot_offset: list[int]
    due_begin: list[int]
    due_take: list[int]
    due_periods_ago: list[int]
    iterations: int
    zone_bytes: int
    lower_bound_bytes: int
    proven: bool

    def columns(self) -> dict[str, list[int]]:
        """Return what the engine takes, by name; swaps are counted from 1 there, 0 is an allocation."""
        names = ("size", "slots", "slot_offset", "due_begin", "due_take", "due_periods_ago")
        return {name: getattr(self, name) for name in names} | {"swap": [swap + 1 for swap in self.swap]}


@dataclass(frozen=True)
class TwoIterations:
    """The allocations and frees of two recorded iterations of `ops` ops, in order.

    `size` (bytes) is negative for a free; `begun` is how many ops had begun before, counted
    from the first iteration's first. `first_count`: how many allocations the first iteration has.
    """

    block: Int64Array
    size: Int64Array
    begun: Int64Array
    first_count: int
    ops: int

    @classmethod
    def of(cls, ticks: Int64Array, marks: Sequence[int], first_op: int, ops: int) -> TwoIterations | None:
        """Read rows (block, bytes, ops begun so far); None if the two iterations did not allocate the same.

        `marks` are the numbers of rows at which the first iteration began and the two ended.
        """
        begin, middle, end = marks
        first, second = (ticks[a:b, 1][ticks[a:b, 1] > 0] for a, b in ((begin, middle), (middle, end)))
        if not np.array_equal(first, second):
            return None
        return cls(ticks[begin:end, 0], ticks[begin:end, 1], ticks[begin:end, 2] - first_op, len(first), ops)


def takes_of(recorded: TwoIterations, swaps: Sequence[Swap] = (), blocks: Sequence[int] = ()) -> Takes:
    """Return the takes of the first of two iterations; `blocks` are the block ids of the storages that `swaps` name."""
    order = sorted(
        range(len(swaps)), key=lambda i: (swaps[i].in_start % recorded.ops, swaps[i].in_before - swaps[i].in_start)
    )
    clock = _Clock(recorded, np.array([swaps[i].in_start % recorded.ops for i in order], dtype=np.int64))
    size, swap = np.empty(clock.count, dtype=np.int64), np.full(clock.count, ALLOCATION)
    is_alloc = recorded.size > 0
    size[clock.of_allocations] = recorded.size[is_alloc][: recorded.first_count]
    size[clock.of_arrivals] = [swaps[i].size_bytes for i in order]
    swap[clock.of_arrivals] = order
    born = recorded.block[is_alloc][: recorded.first_count].tolist()
    freed = dict(zip(recorded.block[~is_alloc].tolist(), clock.of_frees.tolist(), strict=True))
    upper = np.full(clock.count, -1)
    upper[clock.of_allocations] = [freed.get(block, -1) for block in born]
    allocated = dict(zip(born, clock.of_allocations.tolist(), strict=True))
    arrived = dict(zip(order, clock.of_arrivals.tolist(), strict=True))
    for storage, own in _by_storage(swaps).items():
        stays, leaves = [arrived[i] for i in own], [clock.at_op(swaps[i].free_by) for i in own]
        first = allocated.get(blocks[storage])
        if first is not None:  # from its allocation to the first leave, ..., from the last return to its end
            stays, leaves = [first, *stays], [*leaves, int(upper[first])]
        else:  # the same storage in every iteration: from each return to the next leave
            leaves = [_within_period_after(stay, leave, clock.count)
                      for stay, leave in zip(stays, [*leaves[1:], leaves[0]], strict=True)]  # fmt: skip
        upper[stays] = leaves
    return Takes(upper, size, swap)


class _Clock:
    """Puts allocations and arrivals into one order: an arrival at op k comes right before k begins."""

    def __init__(self, recorded: TwoIterations, arrival_op: Int64Array) -> None:
        self._ops = recorded.ops
        is_alloc, first_count = recorded.size > 0, recorded.first_count
        # Twice as fine as ops: an arrival lies between what came before its op and what the op does.
        arrivals = 2 * arrival_op + 1
        keys = np.concatenate((2 * recorded.begun[is_alloc][:first_count], arrivals))
        position = np.empty(len(keys), dtype=np.int64)
        position[np.argsort(keys, kind="stable")] = np.arange(len(keys))
        self._keys = np.sort(keys)
        self.count = len(keys)
        self.of_allocations, self.of_arrivals = position[:first_count], position[first_count:]
        free_key = 2 * recorded.begun[~is_alloc]
        later = free_key > 2 * recorded.ops  # in the second iteration
        before = np.searchsorted(arrivals, free_key - 2 * recorded.ops * later, side="left")
        self.of_frees = np.cumsum(is_alloc)[~is_alloc] + before + later * len(arrivals)

    def at_op(self, op: int) -> int:
        """The number of takes before the arrivals at `op`, which is counted on over the iteration's end."""
        iteration, op = divmod(op, self._ops)
        return iteration * self.count + int(np.searchsorted(self._keys, 2 * op + 1, side="left"))


def _by_storage(swaps: Sequence[Swap]) -> dict[int, list[int]]:
    """Return the swaps of each storage, in the order in which it leaves."""
    found: dict[int, list[int]] = {}
    for index in sorted(range(len(swaps)), key=lambda i: swaps[i].out_after):
        found.setdefault(swaps[index].storage, []).append(index)
    return found


def _within_period_after(begin: int, end: int, period: int) -> int:
    """Return `end`, moved by whole periods to come after `begin` and no more than a period later."""
    return begin + 1 + (end - begin - 1) % period


def plan_addresses(takes: Takes, *, alignment: int, effort: float) -> AddressPlan:
    """Return a table for `takes`; `effort` is the most seconds spent on it."""
    times = min(takes.iterations_outlived, _MOST_ITERATIONS)
    count, period = takes.count, times * takes.count
    planned = np.flatnonzero(takes.upper >= 0)
    size = -(-takes.size // alignment) * alignment
    once = Lifetimes(planned, takes.upper[planned], size[planned])
    lifetimes = repeat(once, count, times)
    packing = pack(lifetimes, alignment=alignment, period=period, effort=effort)
    slots = np.zeros(period, dtype=np.int64)
    slots[lifetimes.lower] = packing.slots
    due_begin, due_take, due_ago = _due(lifetimes, period)
    return AddressPlan(
        size=np.tile(size, times).tolist(),
        swap=np.tile(takes.swap, times).tolist(),
        slots=slots.tolist(),
        slot_offset=packing.offsets.tolist(),
        due_begin=due_begin,
        due_take=due_take,
        due_periods_ago=due_ago,
        iterations=times,
        zone_bytes=packing.footprint,
        lower_bound_bytes=packing.lower_bound,
        proven=packing.proven,
    )


def _due(lifetimes: Lifetimes, period: int) -> tuple[list[int], list[int], list[int]]:
    """Return which takes' lifetimes end between takes k-1 and k, for each k and the period's end."""
    ago, before = np.divmod(lifetimes.upper, period)
    order = np.argsort(before, kind="stable")
    begin = np.searchsorted(before[order], np.arange(period + 2))
    return begin.tolist(), lifetimes.lower[order].tolist(), ago[order].tolist()

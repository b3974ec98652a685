"""An address for everything that takes bytes in a repeating iteration, as the table the engine hands them out from.

The method is SmartPool's (arXiv 1903.06631, section on the memory pool): the k-th allocation of an iteration gets
the k-th address. Where a lifetime outlives a whole iteration (a batch, until the next has been loaded) the table covers
several iterations. A storage that is swapped takes bytes anew with each of its stays (`memfit.planning.stays`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypedDict

import numpy as np

from memfit.arrays import BoolArray, Int64Array
from memfit.ir import Swap
from memfit.planning.packing import NOBODY, Lifetimes
from memfit.planning.stays import Span, Stays, place_stays, stays_of_life, stays_of_recurring, swaps_by_storage
from memfit.simulate import align_up_all

_MOST_ITERATIONS = 4  # in a table
FRAMES = (1 << 31) - 1
"""The `again` of what is no storage's, but for the page frames of an op (native/engine/plan.h)."""
ALLOCATION = -1
"""The `swap` of a take that is an allocation."""
ENDLESS = -1
"""The `upper` of a take whose bytes are still taken when the next iteration ends."""


@dataclass(frozen=True)
class Takes:
    """The takers of bytes in one iteration, in order: allocations, and storages that come back; sizes in bytes.

    Time is counted in takes. The bytes of take k are free again before take `upper[k]`, which is counted on over the
    iteration's end, or `ENDLESS`. `swap[k]` is the swap that take k ends, or `ALLOCATION`. `again[k]` is 1 more than
    the op that runs again and allocates it, `FRAMES`, or 0. `over[k]` is the take whose place take k takes over, or
    `NOBODY`. `mapped[k]`: take k has no bytes, since they stay in the tier. `temporary[k]`: it is an allocation that is
    freed before the next op begins. `op[k]` is the op that take k is of, in the op or after it: ascending, of `ops`
    ops, and -1 before the first. By default each take has an op of its own.
    """

    upper: Int64Array
    size: Int64Array
    swap: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    again: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    over: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    op: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ops: int = 0
    mapped: BoolArray = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    temporary: BoolArray = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        for name in ("mapped", "temporary"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self.size), dtype=np.bool_))
        if not len(self.over):
            object.__setattr__(self, "over", np.full(len(self.size), NOBODY))
        if not len(self.swap):
            object.__setattr__(self, "swap", np.full(len(self.size), ALLOCATION))
        if not len(self.again):
            object.__setattr__(self, "again", np.zeros(len(self.size), dtype=np.int64))
        if not self.ops:
            object.__setattr__(self, "op", np.arange(len(self.size)))
            object.__setattr__(self, "ops", len(self.size))

    @property
    def count(self) -> int:
        """The number of takes in an iteration."""
        return len(self.size)

    def stays(self, alignment: int) -> Stays:
        """Return the stays that have an end, by take, their sizes rounded up to `alignment` bytes."""
        ending = np.flatnonzero(self.upper != ENDLESS)
        size = align_up_all(self.size[ending], alignment)
        iterations = min(self.iterations_outlived, _MOST_ITERATIONS)
        row = np.full(self.count + 1, NOBODY)  # by take, and for NOBODY
        row[ending] = np.arange(len(ending))
        return Stays(ending, ending, self.upper[ending], size, self.count, iterations, row[self.over[ending]])

    @property
    def iterations_outlived(self) -> int:
        """The number of iterations that the longest lifetime is alive in; lifetimes without an end do not count."""
        length = (self.upper - np.arange(self.count))[self.upper >= 0]
        return max(1, int(-(-length.max(initial=1) // self.count)))


class TakeColumns(TypedDict):
    """The takes of a period, as `EngineModule.use_plan` reads them (native/engine/plan_columns.cpp): integers >= 0.

    Columns have a row for each take, where nothing else is said.
    """

    size: list[int]
    """Bytes, a multiple of the alignment."""
    swap: list[int]
    """The number of the swap, from 1 on, that the take ends; 0 for an allocation."""
    again: list[int]
    """1 more than the op that runs again and allocates it; 0 for an allocation of the program's, and for a swap;
    `FRAMES` for the page frames of an op."""
    mapped: list[int]
    """1 for an allocation without an address whose bytes are to stay in the tier; otherwise 0."""
    temporary: list[int]
    """1 for an allocation that is freed before the next op begins; otherwise 0."""
    op_begin: list[int]
    """The first take of each op of an iteration; and how many takes the iteration has."""
    slots: list[int]
    """The number of slots that instances of the take lie in by turns; 0 for a take without an address."""
    slot_offset: list[int]
    """Bytes into the zone, a multiple of the alignment; a row for each slot, take by take."""
    due_begin: list[int]
    """Rows [due_begin[k], due_begin[k + 1]) of the next two columns end between takes k - 1 and k; two rows more."""
    due_take: list[int]
    """The take whose slot is due to be free; a row for each take with slots, in the order of the ends."""
    due_periods_ago: list[int]
    """The number of periods before, in which that instance was allocated; rows as of `due_take`."""


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """The engine's table for a period of `iterations`, and the bytes of the zone that it hands out.

    `lower_bound_bytes` is the peak of live bytes over the circular time: no table needs less. `zone_offset` is where in
    the arena the zone has to be, since the table leaves out what lies there; None: anywhere.
    """

    columns: TakeColumns
    iterations: int
    zone_bytes: int
    lower_bound_bytes: int
    proven: bool
    zone_offset: int | None = None


@dataclass(frozen=True)
class TwoIterations:
    """The allocations and frees of two recorded iterations of `ops` ops, in order.

    `size` (bytes) is negative for a free; `begun` is how many ops had begun before, counted
    from the first iteration's first. `first_count`: how many allocations the first iteration has. `again`: 1 more than
    the op that runs again and allocates it, `FRAMES` for page frames, otherwise 0; empty where it is always 0.
    """

    block: Int64Array
    size: Int64Array
    begun: Int64Array
    first_count: int
    ops: int
    again: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def of(cls, ticks: Int64Array, marks: Sequence[int], op_marks: Sequence[int]) -> TwoIterations:
        """Read rows (block, bytes, ops begun so far).

        `marks` are the numbers of rows at which the first iteration began and the two ended, `op_marks` of ops.
        A second iteration that does not do the same stands for one that does, and frees what it does of the first.
        """
        begin, middle, end = marks
        ops, other_ops = op_marks[1] - op_marks[0], op_marks[2] - op_marks[1]
        ticks = ticks[begin:end] - np.array([0, 0, op_marks[0]])
        first, second = ticks[: middle - begin], ticks[middle - begin :]
        sizes = first[:, 1][first[:, 1] > 0]
        if ops != other_ops or not np.array_equal(sizes, second[:, 1][second[:, 1] > 0]):
            ticks = np.concatenate((first, _another(first, second, ops, other_ops)))
        return cls(ticks[:, 0], ticks[:, 1], ticks[:, 2], len(sizes), ops)

    def freed_earlier(self, givers: Mapping[int, int]) -> TwoIterations:
        """Return them with blocks freed right before others are allocated, by these others."""
        if not givers:
            return self
        rows = enumerate(zip(self.block.tolist(), (self.size > 0).tolist(), strict=True))
        row = {key: number for number, key in rows}
        place, begun = np.arange(len(self.block), dtype=np.float64), self.begun.copy()
        for taker, giver in givers.items():
            place[row[giver, False]] = row[taker, True] - 0.5
            begun[row[giver, False]] = self.begun[row[taker, True]]
        order = np.argsort(place, kind="stable")
        again = self.again[order] if len(self.again) else self.again
        return replace(self, block=self.block[order], size=self.size[order], begun=begun[order], again=again)

    def with_frames(self, frames: Sequence[tuple[int, int]]) -> tuple[TwoIterations, list[int]]:
        """Return them with page frames in these ops (op, bytes), and the frames' blocks in the first iteration."""
        if not frames:
            return self, []
        fresh = int(self.block.max(initial=0)) + 1
        op, size = np.array(frames, dtype=np.int64).T
        begun = np.concatenate((op + 1, op + 1 + self.ops))
        own = fresh + np.arange(len(begun))
        size = np.tile(size, 2)
        again = self.again if len(self.again) else np.zeros(len(self.block), dtype=np.int64)
        # They are taken before anything else that the op does, and given back after it.
        order = np.argsort(np.concatenate((3 * self.begun + 1, 3 * begun, 3 * begun + 2)), kind="stable")
        block, sizes, begins, agains = (
            np.concatenate((column, taken, given))[order]
            for column, taken, given in (
                (self.block, own, own),
                (self.size, size, -size),
                (self.begun, begun, begun),
                (again, np.full(len(begun), FRAMES), np.zeros(len(begun), dtype=np.int64)),
            )
        )
        made = TwoIterations(block, sizes, begins, self.first_count + len(frames), self.ops, agains)
        return made, own[: len(frames)].tolist()


def _another(first: Int64Array, second: Int64Array, ops: int, other_ops: int) -> Int64Array:
    """Return rows of an iteration that does as the `first` did, and frees what the `second` freed of the first.

    An op of the second stands for that in the first which comes as far on.
    """
    born = first[first[:, 1] > 0, 0]
    fresh = {block: int(first[:, 0].max()) + 1 + number for number, block in enumerate(born.tolist())}
    own = first[np.isin(first[:, 0], born)]
    own = np.stack((np.array([fresh[block] for block in own[:, 0].tolist()]), own[:, 1], own[:, 2] + ops), axis=1)
    frees = second[np.isin(second[:, 0], born) & (second[:, 1] < 0)]
    frees[:, 2] = ops + np.minimum(-(-(frees[:, 2] - ops) * ops // max(other_ops, 1)), ops)
    rows = np.concatenate((own, frees))
    return rows[np.argsort(rows[:, 2], kind="stable")]


def takes_of(
    recorded: TwoIterations,
    swaps: Sequence[Swap] = (),
    blocks: Sequence[int] = (),
    givers: Mapping[int, int] = MappingProxyType({}),
    mapped: Collection[int] = (),
) -> Takes:
    """Return the takes of the first of two iterations; `blocks` are the block ids of the storages that `swaps` name.

    `givers` are, by the block of a storage that takes over another one's place, that other one's, which is freed then;
    `mapped` are the blocks of storages that never take bytes.

    If ops 0, 1 and 2 allocate A, B and C, and A's only swap has it away from op 1 until op 3, the takes are A, B, C and
    A again: `swap` is -1, -1, -1, 0, and A's first stay ends before take 1.
    """
    clock = TakeClock(recorded, swaps)
    is_alloc, first_count = recorded.size > 0, recorded.first_count
    # Sizes, and which swap a take ends: allocations and arrivals, each where the clock has them.
    size, swap = np.empty(clock.period, dtype=np.int64), np.full(clock.period, ALLOCATION)
    size[clock.of_allocations] = recorded.size[is_alloc][:first_count]
    for number, take in clock.of_arrivals.items():
        size[take], swap[take] = swaps[number].size_bytes, number
    again = np.zeros(clock.period, dtype=np.int64)
    if len(recorded.again):
        again[clock.of_allocations] = recorded.again[is_alloc][:first_count]
    # Ends of lives: a block's free, in this iteration or the next.
    born = recorded.block[is_alloc][:first_count].tolist()
    freed = dict(zip(recorded.block[~is_alloc].tolist(), clock.of_frees.tolist(), strict=True))
    upper = np.full(clock.period, ENDLESS)
    upper[clock.of_allocations] = [freed.get(block, ENDLESS) for block in born]
    # A swapped storage's life falls into stays, each with a take of its own.
    allocated = dict(zip(born, clock.of_allocations.tolist(), strict=True))
    last = dict(allocated)  # of each block, the take of its last stay
    for storage, own in swaps_by_storage(swaps).items():
        absences, first = [clock.absence(index) for index in own], allocated.get(blocks[storage])
        if first is not None:
            spans = stays_of_life((first, int(upper[first])), absences, returns=all(swaps[i].returns for i in own))
        else:  # the same storage in every iteration
            spans = stays_of_recurring(absences, clock.period)
        for begin, end in spans:
            over = begin // clock.period * clock.period
            upper[begin - over] = end - over
            last[blocks[storage]] = begin - over
    over_take = np.full(clock.period, NOBODY)
    for taker, giver in givers.items():
        if upper[last[giver]] == allocated[taker]:
            over_take[allocated[taker]] = last[giver]
    is_mapped = np.zeros(clock.period, dtype=np.bool_)
    is_mapped[[allocated[block] for block in mapped if block in allocated]] = True
    upper[is_mapped] = ENDLESS
    # What is freed when as many ops have begun as when it was allocated.
    at_free = dict(zip(recorded.block[~is_alloc].tolist(), recorded.begun[~is_alloc].tolist(), strict=True))
    at_birth = recorded.begun[is_alloc][:first_count].tolist()
    is_temporary = np.zeros(clock.period, dtype=np.bool_)
    is_temporary[clock.of_allocations] = [at_free.get(block) == at for block, at in zip(born, at_birth, strict=True)]
    return Takes(upper, size, swap, again, over_take, clock.op, recorded.ops, is_mapped, is_temporary)


class TakeClock:
    """Puts allocations and arrivals into one order: an arrival at op k comes right before k begins.

    Of a swap that does not return there is none.

    Allocations A before op 0, B in op 0 and C in op 1, and an arrival at op 1 are takes 0, 1, 3 and 2. `period` is the
    number of takes in an iteration. Allocations and frees are in recorded order; arrivals are by the swap's number.
    """

    def __init__(self, recorded: TwoIterations, swaps: Sequence[Swap]) -> None:
        self._swaps, self._ops = swaps, recorded.ops
        is_alloc, first_count = recorded.size > 0, recorded.first_count
        # Twice as fine as ops: an arrival lies between what came before its op and what the op does.
        returning = [number for number, swap in enumerate(swaps) if swap.returns]
        arrivals = np.array([2 * (swaps[n].in_start % self._ops) + 1 for n in returning], dtype=np.int64)
        keys = np.concatenate((2 * recorded.begun[is_alloc][:first_count], arrivals))
        leads = [swaps[n].in_before - swaps[n].in_start for n in returning]
        urgency = np.array([0] * first_count + leads, dtype=np.int64)
        order = np.lexsort((urgency, keys))  # of arrivals at one op the one used next comes first
        position = np.empty(len(keys), dtype=np.int64)
        position[order] = np.arange(len(keys))
        self._keys = keys[order]
        self.op = (self._keys + 1) // 2 - 1  # of each take, the op that it is of
        self.period = len(keys)
        self.of_allocations = position[:first_count]
        self.of_arrivals: dict[int, int] = dict(zip(returning, position[first_count:].tolist(), strict=True))
        free_key = 2 * recorded.begun[~is_alloc]
        later = free_key > 2 * recorded.ops  # in the second iteration
        before = np.searchsorted(np.sort(arrivals), free_key - 2 * recorded.ops * later, side="left")
        self.of_frees = np.cumsum(is_alloc)[~is_alloc] + before + later * len(arrivals)

    def at_op(self, op: int) -> int:
        """Return the number of takes before the arrivals at `op`, which is counted on over the iteration's end."""
        iteration, op = divmod(op, self._ops)
        return iteration * self.period + int(np.searchsorted(self._keys, 2 * op + 1, side="left"))

    def absence(self, index: int) -> Span:
        """Return when the bytes of swap `index` are away."""
        swap = self._swaps[index]
        if not swap.returns:
            return self.at_op(swap.free_by), self.at_op(swap.in_start)
        over = swap.in_start // self._ops * self.period
        return self.at_op(swap.free_by), over + self.of_arrivals[index]


def plan_addresses(
    takes: Takes,
    *,
    alignment: int,
    effort: float,
    zone_offset: int | None = None,
    taken: Sequence[tuple[int, int]] = (),
) -> AddressPlan:
    """Return a table for `takes`; `effort` is the most seconds spent on it.

    In the zone, which is at `zone_offset` of the arena then, its slots lie around what is `taken`, by offset in the
    zone and size (bytes).
    """
    stays = takes.stays(alignment)
    placed = place_stays(stays, alignment=alignment, effort=effort, taken=taken)
    lifetimes, packing, times = placed.lifetimes, placed.packing, stays.iterations
    slots = np.zeros(times * takes.count, dtype=np.int64)
    slots[lifetimes.lower] = packing.slots
    due_begin, due_take, due_ago = _due(lifetimes, times * takes.count)
    columns = TakeColumns(
        size=np.tile(align_up_all(takes.size, alignment), times).tolist(),
        swap=np.tile(takes.swap - ALLOCATION, times).tolist(),  # an allocation is 0 here
        again=np.tile(takes.again, times).tolist(),
        mapped=np.tile(takes.mapped.astype(np.int64), times).tolist(),
        temporary=np.tile(takes.temporary.astype(np.int64), times).tolist(),
        op_begin=np.searchsorted(takes.op, np.arange(takes.ops + 1)).tolist(),
        slots=slots.tolist(),
        slot_offset=packing.offsets.tolist(),
        due_begin=due_begin,
        due_take=due_take,
        due_periods_ago=due_ago,
    )
    return AddressPlan(columns, times, packing.footprint, packing.lower_bound, packing.proven, zone_offset)


def _due(lifetimes: Lifetimes, period: int) -> tuple[list[int], list[int], list[int]]:
    """Return which takes' lifetimes end between takes k-1 and k, for each k and the period's end."""
    ago, before = np.divmod(lifetimes.upper, period)
    order = np.argsort(before, kind="stable")
    begin = np.searchsorted(before[order], np.arange(period + 2))
    return begin.tolist(), lifetimes.lower[order].tolist(), ago[order].tolist()

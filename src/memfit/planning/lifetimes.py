"""The demands of a trace on memory: live bytes, working sets, gaps. Pure functions; nothing is moved here.

Bytes are those of the storages as recorded, unless `aligned`: then each is rounded up to `Trace.alignment`,
as an arena places it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memfit import _native
from memfit.arrays import Int64Array
from memfit.ir import Storage, Trace, accessing_ops, align_up


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which a storage is not accessed: after op `after`, before op `before`.

    A cyclic gap runs over the end of the iteration into the next one. `duration_us` is the time of the ops
    strictly between. The last gap of a storage's life does not return: `before` is then the first op that may need as
    many bytes with it away, mostly the first that it is not alive in.
    """

    storage: int
    after: int
    before: int
    size_bytes: int
    duration_us: float
    cyclic: bool
    returns: bool = True

    @property
    def is_inner(self) -> bool:
        """Whether it ends with a use in the same iteration, for which the storage may be made again."""
        return self.returns and not self.cyclic


def live_bytes(trace: Trace, *, aligned: bool = False) -> Int64Array:
    """Return the live bytes after each number of ticks: entry 0 at the start, entry k after k ticks.

    Live bytes when op i begins are therefore entry `trace.ops[i].first_tick`.
    """
    sizes = _sizes(trace, aligned)
    change = np.zeros(trace.ticks + 2, dtype=np.int64)
    # One alive before has alloc_tick -1; one that outlives the iteration leaves in the entry cut off below.
    np.add.at(change, _column(s.alloc_tick + 1 for s in trace.storages), sizes)
    np.subtract.at(change, _column(s.free_tick + 1 for s in trace.storages), sizes)
    return np.cumsum(change)[:-1]


def peak_tick(trace: Trace, *, aligned: bool = False) -> int:
    """Return the first number of ticks after which the live bytes are at their peak."""
    return int(np.argmax(live_bytes(trace, aligned=aligned)))


def peak_live(trace: Trace, *, aligned: bool = False) -> tuple[int, int]:
    """Return the peak live bytes (the lower bound of any arena that moves nothing) and the op it falls in."""
    live = live_bytes(trace, aligned=aligned)
    peak = int(np.argmax(live))
    return int(live[peak]), _op_at(trace, peak)


def live_after(trace: Trace, ticks: int) -> tuple[int, ...]:
    """Return the ids of the storages alive after exactly `ticks` ticks: those `live_bytes` sums."""
    storages = enumerate(trace.storages)
    return tuple(i for i, storage in storages if storage.alloc_tick < ticks <= storage.free_tick)


def births(trace: Trace) -> dict[int, int]:
    """Return the op within which each storage was allocated; one allocated between two ops is in none."""
    ends = [op.first_tick for op in trace.ops[1:]] + [trace.ticks]
    return {
        s: storage.alloc
        for s, storage in enumerate(trace.storages)
        if not storage.born_before
        and storage.alloc < len(trace.ops)
        and trace.ops[storage.alloc].first_tick <= storage.alloc_tick < ends[storage.alloc]
    }


def operands(trace: Trace, op: int) -> tuple[int, ...]:
    """Return the ids of the storages that op `op` accesses and that existed before it began, ascending."""
    accessed = {*trace.ops[op].reads, *trace.ops[op].writes}
    first_tick = trace.ops[op].first_tick
    return tuple(sorted(s for s in accessed if trace.storages[s].alloc_tick < first_tick))


def working_sets(trace: Trace, *, aligned: bool = False) -> Int64Array:
    """Return each op's working set: the bytes of its operands plus its workspace."""
    sizes = [_size(trace, storage, aligned) for storage in trace.storages]
    return _column(
        sum(sizes[s] for s in operands(trace, index)) + op.workspace_bytes for index, op in enumerate(trace.ops)
    )


def least_sets(trace: Trace) -> Int64Array:
    """Return each op's working set, or what does for it in slices, whichever is less (bytes, aligned)."""
    split = _column(op.split_bytes for op in trace.ops)
    whole = working_sets(trace, aligned=True)
    return np.where(split > 0, np.minimum(split, whole), whole)


def leaves_uninitialised(op_name: str) -> bool:
    """Return whether the op's caller is still to fill what the op allocates: until an op uses that, it stays put."""
    return op_name.partition(".")[0] in _native.UNINITIALISED_FACTORIES


def largest_small(needed_bytes: int) -> int:
    """Return the bytes up to which a storage is small, and moves only if nothing else makes room, in this budget."""
    return min(_native.LARGEST_SMALL_BYTES, needed_bytes // _native.SMALL_SHARE)


def fixed_bytes(trace: Trace, above_bytes: int = 0) -> Int64Array:
    """Return, for each op, the bytes (aligned) that cannot leave while it runs though it does not use them.

    They are pinned; or no op has used them yet since they were allocated between two ops, or left uninitialised: C++
    may still hold a pointer. Of the latter only storages above `above_bytes` count.
    """
    change = np.zeros(len(trace.ops) + 1, dtype=np.int64)
    makers, accessing = births(trace), accessing_ops(trace)
    pinned = _pinned_spans(trace, makers)
    for s, storage in enumerate(trace.storages):
        maker = makers.get(s)
        if storage.born_before or storage.size_bytes <= above_bytes:
            continue
        if maker is not None and not leaves_uninitialised(trace.ops[maker].name):
            continue
        begin = storage.alloc if maker is None else maker + 1
        first_use = min((op for op in accessing[s] if op >= begin), default=max(storage.free, begin))
        first_use = max(min(first_use, pinned.get(s, (first_use, 0))[0]), begin)
        change[begin] += _size(trace, storage, aligned=True)
        change[first_use] -= _size(trace, storage, aligned=True)
    return np.cumsum(change)[:-1] + _pinned_bytes(trace, pinned, accessing)


def pinned_bytes(trace: Trace) -> Int64Array:
    """Return, for each op, the bytes (aligned) that are pinned while it runs and that it does not use."""
    return _pinned_bytes(trace, _pinned_spans(trace, births(trace)), accessing_ops(trace))


def _pinned_spans(trace: Trace, makers: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return the ops [begin, end) in which each pinned storage cannot leave; what an op makes is its workspace."""
    spans = {}
    for s, storage in enumerate(trace.storages):
        begin = trace.stays_from(storage)
        if begin is not None:
            begin = max(begin, makers.get(s, -1) + 1)
            spans[s] = begin, max(storage.free, begin)
    return spans


def _pinned_bytes(trace: Trace, spans: Mapping[int, tuple[int, int]], accessing: Sequence[Sequence[int]]) -> Int64Array:
    change = np.zeros(len(trace.ops) + 2, dtype=np.int64)
    change[0] = trace.pinned_bytes
    for s, (begin, end) in spans.items():
        held = _size(trace, trace.storages[s], aligned=True)
        used = [op for op in accessing[s] if begin <= op < end]
        np.add.at(change, [begin, *(op + 1 for op in used)], held)
        np.subtract.at(change, [end, *used], held)
    return np.cumsum(change)[: len(trace.ops)]


def small_bytes(trace: Trace, up_to_bytes: int) -> Int64Array:
    """Return, for each op, the live bytes (aligned) of storages of `up_to_bytes` at most that it does not use.

    Once they are pinned they do not count: then they cannot leave at all.
    """
    change = np.zeros(len(trace.ops) + 1, dtype=np.int64)
    sizes = [_size(trace, s, aligned=True) if s.size_bytes <= up_to_bytes else 0 for s in trace.storages]
    ends = [_end_of_moving(trace, storage) for storage in trace.storages]
    for s, storage in enumerate(trace.storages):
        if storage.free > storage.alloc + 1 or storage.born_before:  # and is not the scratch of one op
            change[storage.alloc] += sizes[s]
            change[ends[s]] -= sizes[s]
    used = _column(
        sum(sizes[s] for s in {*op.reads, *op.writes, *operands(trace, i)} if i < ends[s])
        for i, op in enumerate(trace.ops)
    )
    others: Int64Array = np.maximum(np.cumsum(change)[:-1] - used, 0)
    return others


def _end_of_moving(trace: Trace, storage: Storage) -> int:
    pinned = trace.stays_from(storage)
    return storage.free if pinned is None else max(min(storage.free, pinned), storage.alloc)


def minimum_budget(trace: Trace) -> tuple[int, int]:
    """Return the smallest budget (bytes) in which every op fits with what is pinned, and the op that sets it.

    An op that may run in slices does, where it would need more. No plan is made for a budget in which it has to.

    An arena with holes may need more: this counts bytes, aligned, and not where they lie.
    """
    needed = least_sets(trace) + pinned_bytes(trace)
    op = int(np.argmax(needed))
    return int(needed[op]), op


def executable_budget(trace: Trace) -> tuple[int, int]:
    """Return `minimum_budget` with what the engine cannot let leave, `fixed_bytes`, and the op that sets it."""
    needed = least_sets(trace) + fixed_bytes(trace)
    op = int(np.argmax(needed))
    return int(needed[op]), op


def comfortable_budget(trace: Trace) -> tuple[int, int]:
    """Return `executable_budget` with the small storages too, which leave only as a last resort, and its op.

    What ran before the iteration may need more: that is `trace.before`.
    """
    small = largest_small(executable_budget(trace)[0])
    needed = least_sets(trace) + fixed_bytes(trace, small) + small_bytes(trace, small)
    op = int(np.argmax(needed))
    return int(needed[op]), op


def gaps(trace: Trace) -> list[Gap]:
    """Return the gaps with at least one op in them, largest bytes x duration first.

    A storage that recurs has one gap more, which runs over the end of the iteration; one that is made in the iteration
    has another from its last use until it is freed, in this iteration or the next. A storage that is pinned has only
    those that end before.
    """
    uses, elapsed = accessing_ops(trace), np.concatenate(([0.0], np.cumsum([op.duration_us for op in trace.ops])))
    ends = _Ends(trace, uses)
    found = [gap for storage in range(len(uses)) for gap in _gaps_of(trace, storage, uses, ends, elapsed)]
    return sorted(found, key=lambda gap: (-gap.size_bytes * gap.duration_us, gap.storage, gap.after))


def successors(trace: Trace) -> dict[int, int]:
    """Return, for what is allocated in this iteration and freed in the next, the one of its size freed in this.

    Of one size, those that are there before the iteration are to be numbered in the order in which they were allocated.
    """
    left: dict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(trace.storages):
        if storage.born_before and not trace.outlives(storage):
            left[storage.size_bytes].append(index)
    found = {}
    for index, storage in enumerate(trace.storages):
        if not storage.born_before and trace.outlives(storage) and left[storage.size_bytes]:
            found[index] = left[storage.size_bytes].pop(0)
    return found


def _gaps_of(
    trace: Trace, storage: int, uses: list[list[int]], ends: _Ends, elapsed: NDArray[np.float64]
) -> Iterator[Gap]:
    """Yield the gaps of one storage: those that end with a use, and the one that ends its life."""
    ops, pinned = uses[storage], trace.stays_from(trace.storages[storage])
    if not ops:
        return
    for after, before in pairwise(ops):
        if before > after + 1 and (pinned is None or before < pinned):
            yield _gap(trace, storage, after, before, elapsed)
    if pinned is not None:
        return
    if trace.recurs(trace.storages[storage]) and ops[0] + len(trace.ops) > ops[-1] + 1:
        yield _gap(trace, storage, ops[-1], ops[0] + len(trace.ops), elapsed)
    end = ends.unused_until(storage)
    if end is not None and end > ops[-1] + 1:
        yield _gap(trace, storage, ops[-1], end, elapsed, returns=False)


def _gap(
    trace: Trace, storage: int, after: int, end: int, elapsed: NDArray[np.float64], *, returns: bool = True
) -> Gap:
    """Return the gap from op `after` to op `end`, which is counted on over the iteration's end."""
    cyclic, before = divmod(end, len(trace.ops))
    duration_us = float(elapsed[before] + cyclic * elapsed[-1] - elapsed[after + 1])
    return Gap(storage, after, before, trace.storages[storage].size_bytes, duration_us, bool(cyclic), returns)


class _Ends:
    """The ends of what is not used any more."""

    def __init__(self, trace: Trace, uses: list[list[int]]) -> None:
        self._trace, self._uses, self._next_of = trace, uses, successors(trace)
        self._alloc_ticks = sorted(storage.alloc_tick for storage in trace.storages)

    def unused_until(self, storage: int) -> int | None:
        """Return the op, counted on, until which a storage of this iteration may be away when nothing uses it any more.

        None for one that the next iteration uses, or that no iteration frees: nothing is known of its end.
        """
        one, next_ = self._trace.storages[storage], self._next_of.get(storage)
        if one.born_before:
            return None
        if not self._trace.outlives(one):
            return self._useful_until(one)
        if next_ is None or self._uses[next_] or self._trace.storages[next_].pinned_from is not None:
            return None
        end = len(self._trace.ops) + self._useful_until(self._trace.storages[next_])
        return end if end <= self._uses[storage][-1] + len(self._trace.ops) else None

    def _useful_until(self, one: Storage) -> int:
        """Return the first op that may need as many bytes with `one` away as with it there.

        That is the first it is not alive in, or the one before if what is allocated after `one` is freed counts there.
        """
        ops = self._trace.ops
        end = ops[one.free].first_tick if one.free < len(ops) else self._trace.ticks
        allocates = bisect_left(self._alloc_ticks, one.free_tick) < bisect_left(self._alloc_ticks, end)
        return max(one.free - 1, 0) if allocates else one.free


def _op_at(trace: Trace, ticks: int) -> int:
    """Return the op in (or just after) which the last of the first `ticks` ticks falls."""
    first_ticks = [op.first_tick for op in trace.ops]
    return max(int(np.searchsorted(first_ticks, ticks - 1, side="right")) - 1, 0)


def _size(trace: Trace, storage: Storage, aligned: bool) -> int:
    return align_up(storage.size_bytes, trace.alignment) if aligned else storage.size_bytes


def _sizes(trace: Trace, aligned: bool) -> Int64Array:
    return _column(_size(trace, storage, aligned) for storage in trace.storages)


def _column(values: Iterable[int]) -> Int64Array:
    return np.fromiter(values, dtype=np.int64)

"""The chunks of storages that come in by themselves, in one iteration after the other.

In a window each storage has chunks of its own. It takes those of a storage of its size that was freed, otherwise new
ones; one that continues a storage of the last iteration takes that one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memfit.arrays import Int64Array
from memfit.ir import Trace, align_up
from memfit.machine import Faults
from memfit.planning.lifetimes import successors

ROWS_CHUNK_BYTES = 64 << 10
"""The largest chunk of a storage that is read by rows: of a larger one most bytes would come in for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Chunks, and the range [first, last) of them that each storage takes in each iteration.

    Attributes:
        size_bytes: The size of each chunk.
        has_copy: Whether the chunk has bytes to come in before the first iteration.
        block_begin: The first chunk of each block, and the number of chunks.
        first: By iteration and storage, the first chunk.
        last: By iteration and storage, one more than the last chunk.
        freed: Rows (op, first chunk, last chunk): when the op has ended, the contents are garbage. Ops are counted on
            through all iterations.
    """

    size_bytes: Int64Array
    has_copy: NDArray[np.uint8]
    block_begin: Int64Array
    first: Int64Array
    last: Int64Array
    freed: tuple[tuple[int, int, int], ...]

    @property
    def iterations(self) -> int:
        """The number of iterations."""
        return len(self.first)


@dataclass(frozen=True, slots=True)
class Event:
    """A storage that is allocated before an op, or freed by the time that it begins; frees come first."""

    op: int
    is_alloc: bool
    tick: int
    storage: int

    def __lt__(self, other: Event) -> bool:
        return (self.op, self.is_alloc, self.tick) < (other.op, other.is_alloc, other.tick)


def events(trace: Trace, storages: Collection[int]) -> Iterator[Event]:
    """Yield the allocations and frees of one iteration; what nothing continues is freed at its end."""
    continued = successors(trace)
    for index in storages:
        storage = trace.storages[index]
        if storage.alloc == storage.free and not storage.born_before:  # it came and went between two ops
            continue
        if not storage.born_before:
            yield Event(storage.alloc, True, storage.alloc_tick, index)
        if not trace.outlives(storage):
            yield Event(storage.free, False, storage.free_tick, index)
        elif not storage.born_before and index not in continued:
            yield Event(len(trace.ops), False, storage.free_tick, index)


def predecessors(trace: Trace) -> dict[int, int]:
    """Return, for what is there before the iteration, the storage of the last iteration that it is."""
    earlier = {later: before for before, later in successors(trace).items()}
    recurring = {s: s for s, storage in enumerate(trace.storages) if trace.recurs(storage)}
    return earlier | recurring


def window_layout(
    trace: Trace, faults: Faults, storages: Collection[int], by_rows: Collection[int], iterations: int
) -> Layout:
    """Lay out storages in a window.

    Arguments:
        trace: The recorded iteration.
        faults: The sizes of chunks and blocks.
        storages: The storages whose chunks come in by themselves.
        by_rows: Those of them that are read by rows: their chunks are small.
        iterations: How often the iteration is repeated.

    Returns:
        The chunks; a storage that is not among `storages` has none.
    """
    places = _Places(trace, set(storages), set(by_rows))
    of_storage = np.array([places.next_iteration() for _ in range(iterations)], dtype=np.int64)
    chunks, blocks, ends = _chunks(places.keys, faults)
    first, last = (np.append(column, 0)[of_storage] for column in (ends[:-1], ends[1:]))  # 0: without a place
    has_copy = np.zeros(len(chunks), dtype=np.uint8)
    for storage in storages:
        if trace.storages[storage].born_before and trace.storages[storage].free > 0:
            has_copy[first[0, storage] : last[0, storage]] = 1
    freed = _freed(trace, storages, first, last)
    return Layout(chunks, has_copy, blocks, first, last, freed)


class _Places:
    """The places of storages, from one iteration to the next."""

    def __init__(self, trace: Trace, storages: set[int], by_rows: set[int]) -> None:
        self._trace, self._storages, self._by_rows = trace, storages, by_rows
        self.keys: list[tuple[int, bool]] = []
        self._free: dict[tuple[int, bool], list[int]] = defaultdict(list)
        self._before: list[int] = []
        self._earlier = predecessors(trace)
        self._events = sorted(events(trace, storages))

    def next_iteration(self) -> list[int]:
        """Return the place of each storage, -1 for those that have none."""
        found = [-1] * len(self._trace.storages)
        for storage in sorted(self._storages):
            if self._trace.storages[storage].born_before:
                found[storage] = self._continued(storage)
        for event in self._events:
            if event.is_alloc:
                found[event.storage] = self._take(event.storage)
            else:
                self._free[self._key(event.storage)].append(found[event.storage])
        self._before = found
        return found

    def _continued(self, storage: int) -> int:
        earlier = self._earlier.get(storage)
        return self._before[earlier] if self._before and earlier is not None else self._take(storage)

    def _take(self, storage: int) -> int:
        key = self._key(storage)
        if self._free[key]:
            return self._free[key].pop()
        self.keys.append(key)
        return len(self.keys) - 1

    def _key(self, storage: int) -> tuple[int, bool]:
        return align_up(self._trace.storages[storage].size_bytes, self._trace.alignment), storage in self._by_rows


def _chunks(keys: Collection[tuple[int, bool]], faults: Faults) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the size of each chunk, the first chunk of each block, and the first chunk of each place, with an end."""
    chunks: list[int] = []
    blocks: list[int] = []
    ends = [0]
    for size_bytes, is_by_rows in keys:
        chunk = min(faults.chunk_bytes, ROWS_CHUNK_BYTES) if is_by_rows else faults.chunk_bytes
        whole, rest = divmod(size_bytes, chunk)
        chunks += [chunk] * whole + [rest] * (rest > 0)
        blocks += range(ends[-1], len(chunks), faults.block_bytes // faults.chunk_bytes)
        ends.append(len(chunks))
    return (
        np.array(chunks, dtype=np.int64),
        np.array([*blocks, len(chunks)], dtype=np.int64),
        np.array(ends, dtype=np.int64),
    )


def _freed(
    trace: Trace, storages: Collection[int], first: Int64Array, last: Int64Array
) -> tuple[tuple[int, int, int], ...]:
    count = len(trace.ops)
    at = [(event.op - 1, event.storage) for event in events(trace, storages) if not event.is_alloc]
    rows = ((k * count + op, int(first[k, s]), int(last[k, s])) for k in range(len(first)) for op, s in at)
    return tuple(sorted(row for row in rows if row[0] >= 0))

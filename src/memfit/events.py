"""Lifetimes as columns, and the exact stream of mallocs and frees that they, or a trace, are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Trace


@dataclass(frozen=True, slots=True, eq=False)
class NamedLifetimes:
    """Row i is alive over the half-open times [lower[i], upper[i]) and takes size[i] bytes then.

    At one time frees come before allocations; otherwise rows act in their order. `sources` holds
    the line that allocated each row ("file.py:12", "" when unknown), or nothing when no line is known at all.
    """

    ids: tuple[str, ...]
    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class MallocStream:
    """Mallocs and frees in their exact order.

    A step v >= 0 allocates storage v, of `sizes[v]` bytes; the step ~v frees it. The first `initial` steps are
    the mallocs of what was alive before the start; what has no free outlives the end. Storages of no bytes take no
    step, since no allocator is asked for them.
    """

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    initial: int = 0


def lifetimes_of_rows(rows: Iterable[tuple[str, int, int, int]], sources: Iterable[str] = ()) -> NamedLifetimes:
    """Return the lifetimes with these ids, lower and upper times and sizes (bytes)."""
    columns = tuple(zip(*rows, strict=True)) or ((), (), (), ())
    lower, upper, size = (np.array(column, dtype=np.int64) for column in columns[1:])
    return NamedLifetimes(tuple(columns[0]), lower, upper, size, tuple(sources))


def lifetimes_of_trace(trace: Trace) -> NamedLifetimes:
    """Return the storages of `trace` over its ticks: -1 is before the first, `trace.ticks` the end."""
    rows = ((str(i), s.alloc_tick, s.free_tick, s.size_bytes) for i, s in enumerate(trace.storages))
    return lifetimes_of_rows(rows, (s.source for s in trace.storages))


def events_of_trace(trace: Trace) -> MallocStream:
    """Return the mallocs and frees of one iteration; what outlives it is not freed."""
    sized = [(v, s) for v, s in enumerate(trace.storages) if s.size_bytes]
    born = [(s.alloc_tick, v) for v, s in sized]
    freed = [(s.free_tick, ~v) for v, s in sized if not trace.outlives(s)]
    steps = sorted(born + freed, key=lambda event: event[0])
    initial = sum(s.born_before for _, s in sized)
    return MallocStream(tuple(s.size_bytes for s in trace.storages), tuple(step for _, step in steps), initial)


def events_of_lifetimes(lifetimes: NamedLifetimes) -> MallocStream:
    """Return the mallocs and frees of `lifetimes`; every row is freed at its upper time."""
    rows = np.flatnonzero(lifetimes.size)
    times = np.concatenate((lifetimes.upper[rows], lifetimes.lower[rows]))
    steps = np.concatenate((~rows, rows))
    order = np.argsort(times, kind="stable")  # stable: frees are listed first, and rows in their order
    return MallocStream(tuple(lifetimes.size.tolist()), tuple(steps[order].tolist()))


def live_after_steps(events: MallocStream) -> list[int]:
    """Return the live bytes after each step."""
    return list(accumulate(events.sizes[v] if v >= 0 else -events.sizes[~v] for v in events.steps))

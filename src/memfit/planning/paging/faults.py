"""Ops on memory whose chunks come in when they are touched: faults, bytes and time, by a simulation of each chunk.

Some storages of a trace, or all of them, share a window of so many bytes, all the time or op by op. An op touches the
chunks of its operands as its class says (`classes`), those of several operands side by side. A chunk that is not there
is a fault: what makes room leaves, by the rule `Leaves`, and is copied out if it was written to; then the chunk is
copied in, unless it has no contents yet. The op goes on when all that is done: it takes the time of its computation or
that of these copies, whichever is longer, and a latency for each group of faults.

Beside the ops, chunks may be fetched before they are touched, and may leave before there is need; an op that touches
one on its way waits for it. What is freed is dropped without a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memfit import _native
from memfit.arrays import Int64Array
from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.machine import Faults, Link, Machine
from memfit.planning.lifetimes import births
from memfit.planning.paging.classes import Touch, scratch, touches
from memfit.planning.paging.layout import Layout, window_layout
from memfit.units import format_bytes

_NEVER = 1 << 60


class Leaves(IntEnum):
    """The block that leaves when there is no room for a chunk."""

    LEAST_RECENT = 0
    """The one that was touched longest ago."""
    OLDEST = 1
    """The one that came in first: who sees faults alone, as the kernel or a driver does, sees nothing else."""
    NEWEST = 2
    """The eighth of those that came in last, so that most of what is swept again stays; fewer may be in use at once."""
    USED_LAST = 3
    """The one whose next use is furthest, as a plan knows it."""


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """One iteration, the last of those that were simulated.

    Attributes:
        op_us: The time that each op takes, waits included.
        faults: The chunks that each op had to wait for.
        bytes_in: The bytes that came in during each op.
        bytes_out: The bytes that left with a copy during each op.
        used_bytes: The most bytes in the window during each op, in any iteration.
        compute_us: The time of the ops alone.
        missed: Rows (op, first chunk, last chunk) of the blocks that ops had to wait for, the ops counted on through
            all iterations.
    """

    op_us: NDArray[np.float64]
    faults: Int64Array
    bytes_in: Int64Array
    bytes_out: Int64Array
    used_bytes: Int64Array
    compute_us: float
    missed: Int64Array

    @property
    def iteration_us(self) -> float:
        """The time of the iteration."""
        return float(self.op_us.sum())

    @property
    def overhead(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return (self.iteration_us - self.compute_us) / self.compute_us if self.compute_us else 0.0


class Pager:
    """Simulates one trace with some storages in a window.

    Arguments:
        trace: The recorded iteration.
        faults: The way in which chunks come in.
        layout: The chunks of the storages, and how often the iteration is repeated; before that the window is empty.
    """

    def __init__(self, trace: Trace, faults: Faults, layout: Layout) -> None:
        self.trace, self.faults, self.layout = trace, faults, layout
        inside = np.flatnonzero(layout.last[0] > layout.first[0]).tolist()
        self._touches = all_touches(trace, set(inside))
        self._columns = self._touch_columns()

    @classmethod
    def of_window(cls, trace: Trace, faults: Faults, storages: Collection[int], iterations: int = 2) -> Pager:
        """Return the simulation of these storages in a window of their own."""
        by_rows = {touch.storage for _, touch in all_touches(trace, set(storages)) if touch.draws}
        return cls(trace, faults, window_layout(trace, faults, storages, by_rows, iterations))

    @property
    def op_count(self) -> int:
        """The number of ops in all iterations."""
        return len(self.trace.ops) * self.layout.iterations

    def range_of(self, iteration: int, storage: int) -> tuple[int, int]:
        """Return the range [first, last) of the chunks of a storage in one of the iterations."""
        return int(self.layout.first[iteration, storage]), int(self.layout.last[iteration, storage])

    def run(
        self,
        machine: Machine,
        window_bytes: int | Int64Array,
        leaves: Leaves = Leaves.LEAST_RECENT,
        *,
        fetches: Iterable[tuple[int, int, int, int]] = (),
        dismissed: Iterable[tuple[int, int, int]] = (),
        seed: int = 0,
    ) -> Paged:
        """Simulate the iterations.

        Arguments:
            machine: The links.
            window_bytes: The most bytes of chunks: at any time, or while each op runs. What an op's window has no room
                for leaves before the op does anything else.
            leaves: Which block makes room.
            fetches: Rows (op, first chunk, last chunk, op for which): these come in beside the op, which begins first.
            dismissed: Rows (op, first chunk, last chunk): these leave when the op has ended.
            seed: Draws the rows.

        Returns:
            The last iteration.

        Raises:
            BudgetError: A window is smaller than a chunk.
        """
        windows = np.broadcast_to(np.asarray(window_bytes, dtype=np.int64), len(self.trace.ops))
        self._require_room(int(windows.min()))
        found = _native.simulate_faults(
            duration_us=np.tile([op.duration_us for op in self.trace.ops], self.layout.iterations).astype(np.float64),
            window_bytes=np.tile(windows, self.layout.iterations),
            size_bytes=self.layout.size_bytes,
            has_copy=self.layout.has_copy,
            block_begin=self.layout.block_begin,
            **self._columns,
            **self._fetch_columns(fetches),
            dismissed=self._ranges(dismissed),
            dropped=self._ranges(self.layout.freed),
            rates=_rates(machine, self.faults, leaves),
            seed=seed,
        )
        return self._last_iteration(found)

    def _require_room(self, window_bytes: int) -> None:
        needed = int(self.layout.size_bytes.max(initial=0))
        if window_bytes < needed:
            raise BudgetError(
                f"a window of {format_bytes(max(window_bytes, 0))} holds no chunk",
                why=f"a chunk has {needed} bytes",
                remedy=f"allow {format_bytes(needed - window_bytes)} more",
                required_bytes=needed,
            )

    def _last_iteration(self, found: _native.Faulted) -> Paged:
        count = len(self.trace.ops)
        missed_block = found.missed_block
        begin = self.layout.block_begin
        return Paged(
            op_us=np.diff(found.end_us, prepend=0.0)[-count:],
            faults=found.faults[-count:],
            bytes_in=found.bytes_in[-count:],
            bytes_out=found.bytes_out[-count:],
            used_bytes=found.used_bytes.reshape(-1, count).max(axis=0),
            compute_us=sum(op.duration_us for op in self.trace.ops),
            missed=np.stack([found.missed_op, begin[missed_block], begin[missed_block + 1]], axis=1),
        )

    def _touch_columns(self) -> dict[str, Any]:
        count = len(self.trace.ops)
        rows = [
            (k * count + op, *self.range_of(k, touch.storage), *self._shape(k, touch), touch.is_write)
            for k in range(self.layout.iterations)
            for op, touch in self._touches
        ]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 7).T
        return {
            "touches": self._ranges_of(*columns[:3]),
            "sweeps": np.ascontiguousarray(columns[3]),
            "draws": np.ascontiguousarray(columns[4]),
            "run": np.ascontiguousarray(columns[5]),
            "writes": columns[6].astype(np.uint8),
            "next_op": self._next_ops(),
        }

    def _shape(self, iteration: int, touch: Touch) -> tuple[int, int, int]:
        """Return the sweeps of a touch, its draws, and the chunks of one draw."""
        first, last = self.range_of(iteration, touch.storage)
        sweeps = self.faults.sweeps if touch.sweeps is None else touch.sweeps
        run = -(-touch.row_bytes // int(self.layout.size_bytes[first]))
        return sweeps, touch.draws, min(max(run, 1), last - first)

    def _next_ops(self) -> Int64Array:
        """Return the op that uses the storage of each touch again; what is used no more is never used."""
        count = len(self.trace.ops)
        first = {touch.storage: op for op, touch in reversed(self._touches)}
        found: list[int] = []
        after: dict[int, int] = {}
        for op, touch in reversed(self._touches):
            recurs = self.trace.recurs(self.trace.storages[touch.storage])
            found.append(after.get(touch.storage, count + first[touch.storage] if recurs else _NEVER))
            after[touch.storage] = op
        one = np.array(found[::-1], dtype=np.int64)
        shifted = [np.where(one < _NEVER, one + k * count, _NEVER) for k in range(self.layout.iterations)]
        return np.concatenate(shifted) if shifted else one

    def _fetch_columns(self, fetches: Iterable[tuple[int, int, int, int]]) -> dict[str, Any]:
        rows = np.array(sorted(fetches, key=lambda row: row[0]), dtype=np.int64).reshape(-1, 4).T
        return {"fetches": self._ranges_of(*rows[:3]), "for_op": np.ascontiguousarray(rows[3])}

    def _ranges(self, rows: Iterable[tuple[int, int, int]]) -> _native.ChunkRanges:
        return self._ranges_of(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T)

    def _ranges_of(self, op: Int64Array, first: Int64Array, last: Int64Array) -> _native.ChunkRanges:
        begin = np.searchsorted(op, np.arange(self.op_count + 1)).astype(np.int64)
        return _native.ChunkRanges(begin, np.ascontiguousarray(first), np.ascontiguousarray(last))


def all_touches(trace: Trace, inside: Collection[int]) -> list[tuple[int, Touch]]:
    """Return, op by op, what is done with the storages of a window; scratch is written by the op that has it."""
    born, own = births(trace), scratch(trace)
    found = []
    for op in range(len(trace.ops)):
        its = [*touches(trace, op, born), *(Touch(storage, is_write=True) for storage in own.get(op, ()))]
        found += [(op, touch) for touch in its if touch.storage in inside]
    return found


def us_per_byte(link: Link) -> float:
    """Return the microseconds of a byte in a large copy."""
    size = link.size_bytes[-1]
    return link.copy_us(size) / size


def _rates(machine: Machine, faults: Faults, leaves: Leaves) -> _native.PagingRates:
    return _native.PagingRates(
        in_us_per_byte=us_per_byte(machine.into),
        out_us_per_byte=us_per_byte(machine.out),
        both_factor=machine.both_factor,
        fault_us=faults.fault_us,
        request_us=machine.into.copy_us(1),
        chunks_per_fault=faults.chunks_per_fault,
        keeps_copies=faults.keeps_copies,
        fresh_faults=faults.fresh_faults,
        leaves=int(leaves),
    )

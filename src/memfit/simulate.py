"""The effect of a plan's swaps on an iteration: a simulation of computation and two copy engines.

Computation goes through the ops in order. When op i is about to begin it waits for the copies out with `free_by` i,
then the copies in with `in_start` i are enqueued (the nearest next use first), then it waits for the copies in with
`in_before` i. When it has ended, the copies out with `out_after` i are enqueued. Each direction is one engine, first
in first out; while both are busy each runs at `Machine.both_factor` of its speed. A wait delays everything after it.

Bytes are counted as an arena holds them: rounded up to `Trace.alignment`, until the copy out has ended and no op
before `free_by` uses them any more, and again from the op `in_start` on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memfit import _native
from memfit.arrays import Int64Array
from memfit.errors import InputError
from memfit.ir import Copy, Direction, Plan, Stall, Swap, Timeline, Trace, accessing_ops, align_up
from memfit.machine import Machine

_MOST_ITERATIONS = 16


class Absence(Protocol):
    """A gap, or a swap."""

    @property
    def storage(self) -> int:
        """The storage's id."""

    @property
    def returns(self) -> bool:
        """Whether a copy in ends it."""


@dataclass(frozen=True, slots=True, eq=False)
class SwapColumns:
    """Swaps as native columns: held bytes, ops, microseconds of each copy, and whether the bytes are free at once."""

    size_bytes: Int64Array
    out_after: Int64Array
    free_by: Int64Array
    in_start: Int64Array
    in_before: Int64Array
    out_us: NDArray[np.float64]
    in_us: NDArray[np.float64]
    is_early: NDArray[np.uint8]


class Simulator:
    """Simulates plans for one trace on one machine."""

    def __init__(self, trace: Trace, machine: Machine) -> None:
        self.trace = trace
        self.machine = machine
        self.duration_us = np.array([op.duration_us for op in trace.ops], dtype=np.float64)
        self.load_bytes = load_bytes(trace)
        self._uses = accessing_ops(trace)

    def timeline(self, swaps: Sequence[Swap]) -> Timeline:
        """Return the effect of `swaps` on a steady iteration; raises InputError if their ops are out of order."""
        return self._timeline(swaps, self.run(self.columns(swaps)))

    def columns(self, swaps: Sequence[Swap]) -> SwapColumns:
        """Return `swaps` as `run` takes them."""
        rows = [(s.out_after, s.free_by, s.in_start, s.in_before, s.size_bytes) for s in swaps]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 5)
        out_after, free_by, in_start, in_before, size = (np.ascontiguousarray(column) for column in columns.T)
        return SwapColumns(
            size_bytes=align_up_all(size, self.trace.alignment),
            out_after=out_after,
            free_by=free_by,
            in_start=in_start,
            in_before=in_before,
            out_us=copies_out_us(self.trace, self.machine, swaps),
            in_us=copies_in_us(self.trace, self.machine, swaps),
            is_early=np.array([self._is_early(swap) for swap in swaps], dtype=np.uint8),
        )

    def run(self, columns: SwapColumns) -> _native.Simulated:
        """Return the bare figures of a simulation; raises InputError if the ops of a swap are out of order."""
        try:
            return _native.simulate_swaps(
                duration_us=self.duration_us,
                load_bytes=self.load_bytes,
                size_bytes=columns.size_bytes,
                out_after=columns.out_after,
                free_by=columns.free_by,
                in_start=columns.in_start,
                in_before=columns.in_before,
                out_us=columns.out_us,
                in_us=columns.in_us,
                is_early=columns.is_early,
                both_factor=self.machine.both_factor,
                most_iterations=_MOST_ITERATIONS,
            )
        except ValueError as error:
            raise InputError("the plan cannot be simulated", why=str(error), remedy="plan it again") from error

    def _is_early(self, swap: Swap) -> bool:
        """Whether nothing uses the storage while it is copied out, so that its bytes are free at once."""
        uses, count = self._uses[swap.storage], len(self.trace.ops)
        seen = _uses_until(uses, swap.free_by - 1, count) - _uses_until(uses, swap.out_after, count)
        return seen == 0

    def _timeline(self, swaps: Sequence[Swap], found: _native.Simulated) -> Timeline:
        return Timeline(
            start_us=tuple(found.start_us.tolist()),
            end_us=tuple(found.end_us.tolist()),
            resident_bytes=tuple(found.resident_bytes.tolist()),
            stalls=_stalls(found),
            copies=_copies(swaps, found),
            iteration_us=found.iteration_us,
            compute_us=float(self.duration_us.sum()),
            host_bytes=int(self.host_bytes(swaps).max()),
        )

    def host_bytes(self, swaps: Sequence[Swap]) -> Int64Array:
        """Return, at each op, the bytes that have a place outside the arena: from `out_after` to `in_before`."""
        spans = ((s.out_after + 1, s.in_before, s.size_bytes) for s in swaps)
        return sum_of_spans(spans, len(self.trace.ops))


def simulate(trace: Trace, machine: Machine, plan: Plan) -> Timeline:
    """Return the effect of `plan` on an iteration of `trace` on `machine`, once it is steady.

    Raises InputError if the plan is for another trace, or if it has recomputes: its swaps are of the trace in which
    these are carried out (`planning.joint.judged`).
    """
    require_same_trace(trace, plan)
    if plan.recomputes:
        why = f"its swaps are of the trace in which its {len(plan.recomputes)} recomputes are carried out"
        raise InputError("the swaps alone cannot be simulated", why=why, remedy="memfit simulate TRACE PLAN")
    return Simulator(trace, machine).timeline(plan.swaps)


def require_same_trace(trace: Trace, plan: Plan) -> None:
    """Raise InputError if `plan` was not made for `trace`."""
    if (plan.signature, plan.op_count) != (trace.signature, len(trace.ops)):
        raise InputError(
            "the plan is for another trace",
            why=f"it is for signature {plan.signature!r} of {plan.op_count} ops, "
            f"the trace has {trace.signature!r} of {len(trace.ops)}",
            remedy="plan this trace",
        )


def load_bytes(trace: Trace) -> Int64Array:
    """Return the most bytes alive during each op when nothing is swapped: aligned, pinned bytes included.

    An op's span reaches to the beginning of the next one; the first op's begins with the iteration.
    """
    change = np.zeros(trace.ticks + 2, dtype=np.int64)
    for storage in trace.storages:
        held = align_up(storage.size_bytes, trace.alignment)
        change[storage.alloc_tick + 1] += held
        change[storage.free_tick + 1] -= held
    # Storages that outlive the iteration leave in the last entry, which is after it.
    live = np.cumsum(change)[:-1]
    begin = np.array([0, *(op.first_tick for op in trace.ops[1:])], dtype=np.int64)
    inside = np.maximum.reduceat(live, begin)
    at_end = live[np.append(begin[1:], trace.ticks)]
    most: Int64Array = np.maximum(inside, at_end) + trace.pinned_bytes
    return most


def planned_bytes(trace: Trace, swaps: Sequence[Swap]) -> Int64Array:
    """Return the most bytes each op can see at any speed of the copies: only the plan's ops decide what is absent."""
    spans = ((s.free_by, s.in_start, align_up(s.size_bytes, trace.alignment)) for s in swaps)
    return load_bytes(trace) - sum_of_spans(spans, len(trace.ops))


def copies_out_us(trace: Trace, machine: Machine, absences: Sequence[Absence]) -> NDArray[np.float64]:
    """Return the microseconds of the copy out with which each absence begins."""
    return machine.out.copies_us([trace.storages[each.storage].copied_bytes for each in absences])


def copies_in_us(trace: Trace, machine: Machine, absences: Sequence[Absence]) -> NDArray[np.float64]:
    """Return the microseconds of the copy in that ends each absence; 0 where there is none."""
    copies_us = machine.into.copies_us([trace.storages[each.storage].copied_bytes for each in absences])
    return np.where([each.returns for each in absences], copies_us, 0.0)


def add_span(column: Int64Array, begin: int, end: int, amount: int) -> None:
    """Add `amount` to entries [begin, end) of a circular column; the span is at most as long as the column."""
    count = len(column)
    shift = begin // count * count
    begin, end = begin - shift, end - shift
    column[begin : min(end, count)] += amount
    if end > count:
        column[: end - count] += amount


def sum_of_spans(spans: Iterable[tuple[int, int, int]], count: int) -> Int64Array:
    """Return the sum of (begin, end, amount) in a circular column: `amount` is in the entries [begin, end).

    A span is at most `count` long, which is the column's length.
    """
    begin, end, amount = np.array([*spans], dtype=np.int64).reshape(-1, 3).T
    shift = begin // count * count
    change = np.zeros(2 * count + 1, dtype=np.int64)
    np.add.at(change, begin - shift, amount)
    np.subtract.at(change, end - shift, amount)
    twice = np.cumsum(change)
    total: Int64Array = twice[:count] + twice[count:-1]
    return total


def align_up_all(size_bytes: Int64Array, alignment: int) -> Int64Array:
    """Return each size rounded up to a multiple of `alignment` (bytes)."""
    return -(-size_bytes // alignment) * alignment


def _uses_until(uses: list[int], op: int, count: int) -> int:
    """Return the number of `uses`, repeated every `count` ops, that lie at or before `op`."""
    round_, within = divmod(op, count)
    return round_ * len(uses) + bisect_right(uses, within)


def _stalls(found: _native.Simulated) -> tuple[Stall, ...]:
    directions = (Direction.OUT, Direction.IN)
    rows = zip(
        found.stall_op.tolist(),
        found.stall_swap.tolist(),
        (directions[is_in] for is_in in found.stall_is_in.tolist()),
        found.stall_us.tolist(),
        strict=True,
    )
    return tuple(Stall(*row) for row in rows)


def _copies(swaps: Sequence[Swap], found: _native.Simulated) -> tuple[Copy, ...]:
    columns = (
        (Direction.OUT, found.out_start_us.tolist(), found.out_end_us.tolist()),
        (Direction.IN, found.in_start_us.tolist(), found.in_end_us.tolist()),
    )
    return tuple(
        Copy(index, direction, swap.size_bytes, start, end)
        for direction, starts, ends in columns
        for index, (swap, start, end) in enumerate(zip(swaps, starts, ends, strict=True))
        if end < float("inf")
    )

"""The values, gaps and ops of a trace as the columns of the native search for remakings and swaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from memfit import _native
from memfit.arrays import Float64Array, Int64Array
from memfit.ir import align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.joint.recipes import MOST_OPS, remaking_us
from memfit.planning.joint.values import Values
from memfit.planning.joint.wishes import NO_WISHES, Wishes
from memfit.planning.lifetimes import Gap, births, live_bytes
from memfit.simulate import copies_in_us, copies_out_us, load_bytes

KEPT, SWAPPED, REMADE, PASSING = range(4)
"""The modes of gaps: `native/joint/problem.h`."""
_NEVER = float("inf")


class Waits(IntEnum):
    """What ops may wait for: `native/joint/problem.h`.

    Nothing; the copies that the search forces, at a rough price; or all that is swapped, as the scheduler of swap plans
    times it, which takes longer.
    """

    NEVER = 0
    WHERE_FORCED = 1
    TIMED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Hints:
    """For each gap, parts of 1: how likely its storage stays, more than 0; and if it does not, is made again."""

    keep: Float64Array
    remake: Float64Array


@dataclass(frozen=True, slots=True, eq=False)
class JointColumns:
    """A trace that is ready to be searched at any budget.

    Attributes:
        values: The trace and its values.
        gaps: The gaps that may be used, those of one storage together and in the order of their ops.
        remaking_us: What making each storage again at its gap's end takes; infinite if that cannot be done.
        may_leave: For each gap whether it may be swapped.
    """

    values: Values
    gaps: tuple[Gap, ...]
    remaking_us: Float64Array
    may_leave: NDArray[np.bool_]
    _columns: _native.JointColumns

    @classmethod
    def of(cls, values: Values, found: Iterable[Gap], wishes: Wishes = NO_WISHES) -> JointColumns:
        """Return the columns of `values`, with the gaps `found`, as far as `wishes` let them be used."""
        gaps = tuple(sorted(found, key=lambda gap: (gap.storage, gap.after)))
        made_us = [None if gap.storage in wishes.never_remade else remaking_us(values, gap) for gap in gaps]
        us = np.array([_NEVER if each is None else each for each in made_us], dtype=float)
        may_leave = np.array([gap.storage not in wishes.never_swapped for gap in gaps], dtype=bool)
        columns = _of_ops(values)
        _add_values(columns, values)
        _add_gaps(columns, values, gaps, us)
        return cls(values, gaps, us, may_leave, columns)

    def search(
        self,
        modes: Sequence[int],
        machine: Machine,
        budget_bytes: int,
        *,
        effort: float,
        seed: int = 0,
        may_swap: bool = True,
        hints: Hints | None = None,
        mends: bool = False,
        waits: Waits = Waits.NEVER,
    ) -> _native.FoundChoice:
        """Return the modes of the gaps that are found from `modes` on.

        Arguments:
            modes: Where to begin: the mode of each gap.
            machine: The links.
            budget_bytes: What the arena may take.
            effort: Seconds of counted work.
            seed: Of the random numbers.
            may_swap: Whether gaps may be swapped.
            hints: What is likely to be done in each gap; by default all is as likely.
            mends: Whether it first uses gap after gap where there is too much, and leaves out what is not needed then.
            waits: What ops may wait for.

        Returns:
            What was found; it may be over the budget if the search ended before that was mended.
        """
        count, trace = len(self.gaps), self.values.trace
        if may_swap:
            out_us = np.where(self.may_leave, copies_out_us(trace, machine, self.gaps), _NEVER)
            in_us = np.where(self.may_leave, copies_in_us(trace, machine, self.gaps), _NEVER)
        else:
            out_us = in_us = np.full(count, _NEVER)
        keep, remake = (hints.keep, hints.remake) if hints else (np.ones(count), np.full(count, 0.7))
        return self._columns.search(
            start=np.array(modes, dtype=np.uint8),
            price_us=np.where(np.isfinite(self.remaking_us), self.remaking_us, 0.0),
            keep=keep,
            remake=remake,
            out_us=out_us,
            in_us=in_us,
            budget_bytes=budget_bytes,
            most_ops=MOST_OPS,
            both_factor=machine.both_factor,
            effort=effort,
            seed=seed,
            mends=mends,
            waits=waits,
        )


def _rows(rows: Iterable[Sequence[int]]) -> tuple[Int64Array, Int64Array]:
    """Return where each row starts, with the end of the last, and the values of all."""
    starts, values = [0], list[int]()
    for row in rows:
        values += row
        starts.append(len(values))
    return np.array(starts, dtype=np.int64), np.array(values, dtype=np.int64)


def _of_ops(values: Values) -> _native.JointColumns:
    trace = values.trace
    live = live_bytes(trace, aligned=True)
    born: dict[int, list[int]] = defaultdict(list)
    for storage, op in sorted(births(trace).items()):
        born[op].append(storage)
    operands = [values.operands(op) for op in range(len(trace.ops))]
    born_start, born_values = _rows(born[op] for op in range(len(trace.ops)))
    reads_start, reads = _rows(reads for reads, _ in operands)
    writes_start, writes = _rows(writes for _, writes in operands)
    return _native.JointColumns(
        us=np.array([op.duration_us for op in trace.ops], dtype=np.float64),
        again_us=np.array(values.again_us, dtype=np.float64),
        load_bytes=load_bytes(trace),
        begin_bytes=live[np.array([op.first_tick for op in trace.ops], dtype=np.int64)] + trace.pinned_bytes,
        born_start=born_start,
        born=born_values,
        reads_start=reads_start,
        reads=reads,
        writes_start=writes_start,
        writes=writes,
        held_bytes=np.array([align_up(s.size_bytes, trace.alignment) for s in trace.storages], dtype=np.int64),
    )


def _add_values(columns: _native.JointColumns, values: Values) -> None:
    found = values.values
    reads_start, reads = _rows(value.reads for value in found)
    of_storage_start, of_storage = _rows(values.of_storage)
    columns.values(
        storage=np.array([value.storage for value in found], dtype=np.int64),
        writer=np.array([-1 if value.writer is None else value.writer for value in found], dtype=np.int64),
        last=np.array([value.last for value in found], dtype=np.int64),
        remakable=np.array([value.remakable for value in found], dtype=np.uint8),
        reads_start=reads_start,
        reads=reads,
        of_storage_start=of_storage_start,
        of_storage=of_storage,
    )


def _add_gaps(columns: _native.JointColumns, values: Values, gaps: Sequence[Gap], us: Float64Array) -> None:
    own: list[list[int]] = [[] for _ in values.trace.storages]
    for number, gap in enumerate(gaps):
        own[gap.storage].append(number)
    of_storage_start, of_storage = _rows(own)
    columns.gaps(
        storage=np.array([gap.storage for gap in gaps], dtype=np.int64),
        after=np.array([gap.after for gap in gaps], dtype=np.int64),
        before=np.array([end_of(values.trace, gap) for gap in gaps], dtype=np.int64),
        remakable=np.isfinite(us).astype(np.uint8),
        returns=np.array([gap.returns for gap in gaps], dtype=np.uint8),
        of_storage_start=of_storage_start,
        of_storage=of_storage,
    )

"""The values that storages hold, one after the other: what wrote each, and from which values it was made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from memfit.errors import InputError
from memfit.ir import Trace, align_up
from memfit.planning.joint.again import may_run_again, updates_statistics
from memfit.planning.lifetimes import births


@dataclass(frozen=True, slots=True)
class Value:
    """The bytes of one storage from one write to the next.

    Attributes:
        storage: The storage's id.
        version: The number of writes to the storage before it, in this trace.
        writer: The op that wrote it; None for what the storage held when the trace, or its life, began.
        reads: The numbers of the values that the writer read. An op that writes into a storage, and did not allocate
            it, reads its old value: it may have written to a part only.
        remakable: Whether its writer may run again for its sake.
        last: The last op at whose beginning it is there: the next writer, or the last op of the storage's life.
    """

    storage: int
    version: int
    writer: int | None
    reads: tuple[int, ...]
    remakable: bool
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Every value of a trace.

    Attributes:
        trace: The trace.
        values: The values; a value's number is its position.
        of_storage: The numbers of each storage's values, in order; the first is what it held at the beginning.
        allocated_bytes: For each op, the most that what it allocates takes until the next one begins.
        again_us: For each op the microseconds that it takes when it runs again.
        never: The storages that are not made again, whatever made them: those that are pinned are among them.
    """

    trace: Trace
    values: tuple[Value, ...]
    of_storage: tuple[tuple[int, ...], ...]
    allocated_bytes: tuple[int, ...]
    again_us: tuple[float, ...]
    never: frozenset[int]
    _writers: tuple[tuple[int, ...], ...] = field(repr=False)

    @classmethod
    def of(cls, trace: Trace, again_us: Sequence[float] | None = None, never: Collection[int] = ()) -> Values:
        """Return the values of `trace`, whose ops write what they say (`again.corrected`).

        Arguments:
            trace: The recorded iteration.
            again_us: For each op the microseconds that it takes when it runs again; by default its duration, which in
                a training process counts the Python code before the next op too.
            never: Storages that are not made again.

        Raises:
            InputError: `again_us` has not one number for each op.
        """
        durations = tuple(op.duration_us for op in trace.ops)
        again = durations if again_us is None else tuple(float(us) for us in again_us)
        if len(again) != len(durations):
            raise InputError(
                "the times of second runs do not fit the trace",
                why=f"there are {len(again)} of them and {len(durations)} ops",
                remedy="give one for each op",
            )
        return _Reader(trace, never).result(again)

    def before(self, storage: int, op: int) -> int:
        """Return the number of the value that `storage` holds, or held last, when `op` begins."""
        return self.of_storage[storage][bisect_left(self._writers[storage], op)]

    def is_there(self, value: int, op: int) -> bool:
        """Return whether `value` is its storage's value, and the storage alive, when `op` begins."""
        held = self.values[value]
        return (held.writer is None or held.writer < op) and op <= held.last

    def operands(self, op: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what `op` reads and writes when it runs again: not statistics, which it leaves as they are."""
        each, trace = self.trace.ops[op], self.trace
        left = {s for s in each.writes if trace.recurs(trace.storages[s])} if updates_statistics(each) else set()
        return tuple(s for s in each.reads if s not in left), tuple(s for s in each.writes if s not in left)

    def written_by(self, op: int) -> Iterator[int]:
        """Yield the numbers of the values that `op` wrote."""
        for storage in self.trace.ops[op].writes:
            yield self.before(storage, op + 1)


class _Reader:
    """Reads the ops once, in order."""

    def __init__(self, trace: Trace, never: Collection[int]) -> None:
        # What is written through an address that is known outside is not seen: its values are nobody's to make again.
        pinned = (s for s, storage in enumerate(trace.storages) if storage.pinned_from is not None)
        self.trace, self.never = trace, frozenset((*never, *pinned))
        self.born = births(trace)
        self.rows: list[tuple[int, int, int | None, tuple[int, ...], bool]] = []
        self.of_storage: list[list[int]] = [[] for _ in trace.storages]
        for storage in range(len(trace.storages)):
            self._add(storage, None, (), False)

    def result(self, again_us: tuple[float, ...]) -> Values:
        for index in range(len(self.trace.ops)):
            self._read(index)
        writers = tuple(tuple(w for v in found if (w := self.rows[v][2]) is not None) for found in self.of_storage)
        values = [Value(*row, last=self._last(row[0], row[1], writers[row[0]])) for row in self.rows]
        of_storage = tuple(tuple(found) for found in self.of_storage)
        return Values(self.trace, tuple(values), of_storage, self._allocated_bytes(), again_us, self.never, writers)

    def _allocated_bytes(self) -> tuple[int, ...]:
        """Follow what each op allocates from tick to tick, while it runs and until the next op begins."""
        firsts = [op.first_tick for op in self.trace.ops[1:]] + [self.trace.ticks]
        most, storages = [0] * len(firsts), self.trace.storages
        changes: list[list[tuple[int, int]]] = [[] for _ in firsts]
        for storage, maker in self.born.items():
            held = align_up(storages[storage].size_bytes, self.trace.alignment)
            changes[maker].append((storages[storage].alloc_tick, held))
            if storages[storage].free_tick < firsts[maker]:
                changes[maker].append((storages[storage].free_tick, -held))
        for maker, own in enumerate(changes):
            most[maker] = max(accumulate((held for _, held in sorted(own)), initial=0))
        return tuple(most)

    def _read(self, index: int) -> None:
        op = self.trace.ops[index]
        old = [s for s in op.writes if self.born.get(s) != index]
        held_off = {s for s in old if updates_statistics(op) and self.trace.recurs(self.trace.storages[s])}
        inputs = {s: self.of_storage[s][-1] for s in (*op.reads, *old) if s not in held_off}
        for storage in dict.fromkeys(op.writes):
            others = [s for s in old if s != storage and s not in held_off]
            again = may_run_again(op) and not others and not self.trace.recurs(self.trace.storages[storage])
            again = again and storage not in self.never
            mine = {s: value for s, value in inputs.items() if s != storage or storage in old}
            self._add(storage, index, tuple(sorted(set(mine.values()))), again)

    def _add(self, storage: int, writer: int | None, reads: tuple[int, ...], again: bool) -> None:
        found = self.of_storage[storage]
        self.rows.append((storage, len(found), writer, reads, again))
        found.append(len(self.rows) - 1)

    def _last(self, storage: int, version: int, writers: tuple[int, ...]) -> int:
        """Return the next writer, or the last op at whose beginning the storage is alive."""
        return writers[version] if version < len(writers) else self.trace.storages[storage].free - 1

"""A trace in which storages are dropped and made again: the ops that run again are ops, and lives are cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memfit.ir import BEFORE_FIRST_TICK, Recompute, Trace, Transformed
from memfit.planning.joint.arrange import Remaking, remakings
from memfit.planning.joint.values import Values
from memfit.planning.joint.writer import TraceWriter
from memfit.planning.lifetimes import births

Event = tuple[int, bool]
"""A storage, and whether it is allocated; otherwise it is freed."""


def with_recomputes(values: Values, recomputes: Iterable[Recompute]) -> Transformed:
    """Return the trace of `values` in which `recomputes` are carried out.

    Storages are dropped right after their last use. Remakings run right before their op; what they make on the way is
    freed after its last use, and what else their ops write is thrown away.
    """
    return _Transforming(values, list(recomputes)).result()


class _Transforming:
    """Writes the ops and ticks of the original trace again, with those of the remakings in between."""

    def __init__(self, values: Values, recomputes: list[Recompute]) -> None:
        self.values, self.original = values, values.trace
        self.writer = TraceWriter(self.original)
        self.by_op = {made.before: made for made in remakings(recomputes)}
        self.for_good = frozenset(one.storage for one in recomputes if not one.returns)
        self.dropped: dict[int, list[int]] = defaultdict(list)
        for one in recomputes:
            self.dropped[one.after].append(one.storage)
        self.born = births(self.original)
        self.ticks = ticks_of(self.original)
        self.starts = [op.first_tick for op in self.original.ops] + [self.original.ticks]
        self.current: dict[int, int] = {}
        self.runs_again: list[bool] = []
        self.op_of: list[int] = []

    def result(self) -> Transformed:
        for index, storage in enumerate(self.original.storages):
            if storage.born_before:
                self.current[index] = self.writer.born_before(index)
        for index, is_alloc in self._events(0, self.starts[0]):
            self._event(index, is_alloc, inside=False)
        for index in range(len(self.original.ops)):
            if index in self.by_op:
                self._remake(self.by_op[index])
            self._op(index)
        trace = self.writer.trace(f"{self.original.signature}+{sum(self.runs_again)}")
        ops, again, storages = tuple(self.op_of), tuple(self.runs_again), tuple(self.writer.originals)
        return Transformed(self._pinned(trace), ops, again, storages, self.for_good)

    def _pinned(self, trace: Trace) -> Trace:
        """Return `trace` with the pins of the original one: those of storages that are never dropped."""
        at = [*(op for op, again in enumerate(self.runs_again) if not again), len(self.runs_again)]
        storages = list(trace.storages)
        for index, original in enumerate(self.writer.originals):
            like = self.original.storages[original]
            if like.pinned_from is not None:
                storages[index] = replace(storages[index], pinned_from=at[like.pinned_from], pinned_by=like.pinned_by)
        return replace(trace, storages=tuple(storages))

    def _op(self, index: int) -> None:
        """Write an op of the original trace, what happens before the next, and what is dropped after it."""
        self._begin(index, again=False)
        op = self.original.ops[index]
        names = {s: self.current[s] for s in (*op.reads, *op.writes) if s in self.current}
        for storage, is_alloc in self._events_of(index):
            self._event(storage, is_alloc, inside=self.born.get(storage) == index)
            if is_alloc:
                names[storage] = self.current[storage]
        self.writer.operands([names[s] for s in op.reads], [names[s] for s in op.writes])
        for storage in self.dropped.get(index, ()):
            self.writer.free(self.current.pop(storage))

    def _begin(self, index: int, *, again: bool) -> None:
        op = self.original.ops[index]
        self.writer.begin(op, self.values.again_us[index] if again else op.duration_us)
        self.op_of.append(index)
        self.runs_again.append(again)

    def _events(self, begin: int, end: int) -> Iterator[Event]:
        """Yield what happens to storages of the trace in ticks [begin, end); other ticks are not written again."""
        return filter(None, self.ticks[begin:end])

    def _events_of(self, op: int) -> Iterator[Event]:
        """Yield what happens from the beginning of `op` to that of the next one."""
        return self._events(self.starts[op], self.starts[op + 1])

    def _event(self, storage: int, is_alloc: bool, *, inside: bool) -> None:
        if is_alloc:
            self.current[storage] = self.writer.alloc(storage, inside=inside)
        elif storage in self.current or storage not in self.for_good:
            self.writer.free(self.current.pop(storage))

    def _remake(self, made: Remaking) -> None:
        """Run ops again; what they make has storages of its own, of which those that return become the storages."""
        own: dict[int, int] = {}
        last_use = {storage: op for op in made.ops for storage in self._made_here(op, made)}
        for op in made.ops:
            self._run_again(op, made, own)
            for storage in [s for s in own if last_use[s] == op and s not in made.storages]:
                self.writer.free(own.pop(storage))
        self.current |= own

    def _run_again(self, index: int, made: Remaking, own: dict[int, int]) -> None:
        self._begin(index, again=True)
        here = self._made_here(index, made)
        for storage, is_alloc in self._events_of(index):
            if is_alloc and self.born.get(storage) == index:
                own[storage] = self.writer.alloc(storage, inside=True)
        reads, writes = self.values.operands(index)
        self.writer.operands([own[s] if s in here else self.current[s] for s in reads], [own[s] for s in writes])
        for storage, is_alloc in self._events_of(index):
            if not is_alloc and self.born.get(storage) == index and storage not in made.storages:
                self.writer.free(own.pop(storage))

    def _made_here(self, index: int, made: Remaking) -> set[int]:
        """Return the storages that `index` uses, run again, and that are not those of the trace then."""
        op = self.original.ops[index]
        there = {s for s in op.reads if s in self.current and self._is_there(s, index, made.before)}
        inside = {storage for storage, _ in self._events_of(index) if self.born.get(storage) == index}
        used = {s for operands in self.values.operands(index) for s in operands}
        return (used - (there - set(op.writes))) | inside

    def _is_there(self, storage: int, reader: int, op: int) -> bool:
        return self.values.is_there(self.values.before(storage, reader), op)


def ticks_of(trace: Trace) -> list[Event | None]:
    """Return, for each tick, the storage, and whether it is allocated; None for a tick of none of the trace's storages.

    Such a tick is, for example, the end of what was left out of a trace.
    """
    found: list[Event | None] = [None] * trace.ticks
    for index, storage in enumerate(trace.storages):
        if storage.alloc_tick != BEFORE_FIRST_TICK:
            found[storage.alloc_tick] = (index, True)
        if not trace.outlives(storage):
            found[storage.free_tick] = (index, False)
    return found

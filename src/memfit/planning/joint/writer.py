"""Writes a trace event by event, out of the ops and storages of another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from memfit.ir import BEFORE_FIRST_TICK, Op, Storage, Trace


@dataclass(slots=True)
class TraceWriter:
    """A trace in the making; `originals` has for each of its storages the one of `source` that it is like."""

    source: Trace
    originals: list[int] = field(default_factory=list)
    _lives: list[tuple[int, int]] = field(default_factory=list)
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    _ops: list[Op] = field(default_factory=list)
    _ticks: int = 0
    _begun: tuple[Op, float, int] = field(init=False)

    def born_before(self, original: int) -> int:
        """Add a storage that was alive before the iteration; return its id."""
        return self._add(original, 0, BEFORE_FIRST_TICK)

    def alloc(self, original: int, *, inside: bool) -> int:
        """Allocate a storage within the last op, otherwise between it and the next; return its id."""
        self._ticks += 1
        return self._add(original, len(self._ops) - inside, self._ticks - 1)

    def free(self, storage: int) -> None:
        """Free a storage within or after the last op."""
        self._ends[storage] = (len(self._ops), self._ticks)
        self._ticks += 1

    def begin(self, op: Op, duration_us: float) -> None:
        """Begin an op that is like `op` and takes `duration_us`; say next what it reads and writes."""
        self._begun = (op, duration_us, self._ticks)
        self._ops.append(op)

    def operands(self, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Say what the last op reads and writes."""
        like, us, first_tick = self._begun
        self._ops[-1] = Op(
            like.name, like.phase, us, like.source, tuple(reads), tuple(writes), first_tick, like.workspace_bytes
        )

    def trace(self, signature: str) -> Trace:
        """Return what was written."""
        storages = tuple(self._storage(index) for index in range(len(self.originals)))
        return replace(
            self.source,
            ops=tuple(self._ops),
            storages=storages,
            ticks=self._ticks,
            signature=signature,
            handovers=(),  # they name the source's ops and storages
        )

    def _add(self, original: int, alloc: int, tick: int) -> int:
        self.originals.append(original)
        self._lives.append((alloc, tick))
        return len(self.originals) - 1

    def _storage(self, index: int) -> Storage:
        alloc, alloc_tick = self._lives[index]
        free, free_tick = self._ends.get(index, (len(self._ops), self._ticks))
        like = self.source.storages[self.originals[index]]
        return Storage(like.size_bytes, like.category, alloc, free, alloc_tick, free_tick, like.source,
                       stored_bytes=like.stored_bytes)  # fmt: skip

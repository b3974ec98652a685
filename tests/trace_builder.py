"""Builds valid traces event by event, as a recorder would, for tests to take apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from memfit.ir import Category, Op, Phase, Storage, Trace, align_up


@dataclass
class _Row:
    size_bytes: int
    category: Category
    alloc: int
    alloc_tick: int
    source: str
    free: int | None = None
    free_tick: int | None = None
    pinned_from: int | None = None
    pinned_by: str = ""


class TraceBuilder:
    def __init__(self, alignment: int = 1, pinned_bytes: int = 0) -> None:
        self.alignment = alignment
        self.pinned_bytes = pinned_bytes
        self.rows: list[_Row] = []
        self.ops: list[Op] = []
        self.ticks = 0

    def before(self, size_bytes: int, category: Category = Category.PARAMETER, source: str = "") -> int:
        """A storage alive before the iteration."""
        self.rows.append(_Row(size_bytes, category, 0, -1, source))
        return len(self.rows) - 1

    def alloc(self, size_bytes: int, category: Category = Category.INPUT, source: str = "") -> int:
        """An allocation between two ops."""
        return self._alloc(size_bytes, category, len(self.ops), source)

    def op(
        self,
        name: str = "op",
        *,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        outputs: Sequence[int] = (),
        scratch: Sequence[int] = (),
        duration_us: float = 1.0,
        phase: Phase = Phase.FORWARD,
        category: Category = Category.ACTIVATION,
        source: str = "",
    ) -> list[int]:
        """An op that allocates storages of these sizes, writes the outputs and frees the scratch."""
        index, first_tick = len(self.ops), self.ticks
        born = [self._alloc(size, category, index, source) for size in outputs]
        for storage in [self._alloc(size, Category.SCRATCH, index, source) for size in scratch]:
            self._free(storage, index + 1)
        workspace = sum(align_up(size, self.alignment) for size in (*outputs, *scratch))
        both = (*writes, *born)
        self.ops.append(Op(name, phase, duration_us, source, tuple(reads), both, first_tick, workspace))
        return born

    def free(self, *storages: int) -> None:
        """Frees just after the last op."""
        for storage in storages:
            self._free(storage, len(self.ops))

    def pin(self, storage: int, line: str = "") -> None:
        """Pins between the last op and the next one."""
        self.rows[storage].pinned_from, self.rows[storage].pinned_by = len(self.ops), line

    def other_tick(self) -> None:
        """An allocation or a free of what is none of the trace's storages."""
        self.ticks += 1

    def build(self, **changes: Any) -> Trace:
        end = {"free": len(self.ops), "free_tick": self.ticks}
        rows = [vars(row) | (end if row.free is None else {}) for row in self.rows]
        fields: dict[str, Any] = {
            "ops": tuple(self.ops),
            "storages": tuple(Storage(**row) for row in rows),
            "ticks": self.ticks,
            "signature": "s",
            "torch_version": "2.13.0",
            "device": "cpu",
            "script": "train.py",
            "iteration": 2,
            "alignment": self.alignment,
            "pinned_bytes": self.pinned_bytes,
        }
        return Trace(**(fields | changes))

    def alive(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if row.free is None]

    def _alloc(self, size_bytes: int, category: Category, op: int, source: str) -> int:
        self.rows.append(_Row(size_bytes, category, op, self.ticks, source))
        self.ticks += 1
        return len(self.rows) - 1

    def _free(self, storage: int, op: int) -> None:
        assert self.rows[storage].free is None
        self.rows[storage].free, self.rows[storage].free_tick = op, self.ticks
        self.ticks += 1


SIZES = st.integers(0, 40)
ALIGNMENTS = st.sampled_from([1, 8])
PINNED = st.sampled_from([0, 5])
DURATIONS = st.floats(0, 1e6, allow_subnormal=False)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    max_ops: int = 12,
    sizes: st.SearchStrategy[int] = SIZES,
    alignments: st.SearchStrategy[int] = ALIGNMENTS,
    pinned: st.SearchStrategy[int] = PINNED,
    durations: st.SearchStrategy[float] = DURATIONS,
    persistent: bool = True,
    writes: bool = True,
    other_ticks: bool = True,
) -> Trace:
    """A random valid trace: storages before, within and across the iteration, accessed at random.

    Some of its ticks belong to none of them, and some of them are pinned.
    """
    builder = TraceBuilder(draw(alignments), draw(pinned))
    for size in draw(st.lists(sizes, max_size=4 if persistent else 0)):
        builder.before(size, draw(st.sampled_from(Category)))
    for _ in range(draw(st.integers(1, max_ops))):
        for size in draw(st.lists(sizes, max_size=1)) if writes else ():
            builder.alloc(size)
        _random_op(draw, builder, sizes, durations, writes)
        for storage in builder.alive():
            if draw(st.integers(0, 4)) == 0:
                builder.free(storage)
        if other_ticks and draw(st.integers(0, 4)) == 0:
            builder.other_tick()
        _random_pin(draw, builder)
    if not persistent:
        builder.free(*builder.alive())
    return builder.build()


def _random_pin(draw: st.DrawFn, builder: TraceBuilder) -> None:
    movable = [storage for storage in builder.alive() if builder.rows[storage].pinned_from is None]
    if movable and draw(st.integers(0, 9)) == 0:
        builder.pin(draw(st.sampled_from(movable)), draw(st.sampled_from(["", "train.py:4"])))


def _random_op(
    draw: st.DrawFn,
    builder: TraceBuilder,
    sizes: st.SearchStrategy[int],
    durations: st.SearchStrategy[float],
    writes: bool,
) -> None:
    alive = builder.alive()
    some = st.lists(st.sampled_from(alive), max_size=3, unique=True) if alive else st.just([])
    builder.op(
        draw(st.sampled_from(["aten::mm", "aten::add_"])),
        reads=draw(some),
        writes=draw(some) if writes else (),
        outputs=draw(st.lists(sizes, max_size=2)),
        scratch=draw(st.lists(sizes, max_size=1)),
        duration_us=draw(durations),
        phase=draw(st.sampled_from(Phase)),
        source=draw(st.sampled_from(["", "train.py:3", "modèle.py:9"])),
    )

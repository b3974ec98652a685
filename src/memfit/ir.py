"""The nouns: one recorded training iteration as plain, immutable data.

Two clocks order an iteration. An op index counts ops. A tick counts allocation and free events of
storages, in their exact order: it is finer, since scratch comes and goes inside one op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

BEFORE_FIRST_TICK = -1
"""The `alloc_tick` of a storage that was alive before the iteration."""


class Category(StrEnum):
    """What a storage holds."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    INPUT = "input"
    SCRATCH = "scratch"


class Phase(StrEnum):
    """The part of the iteration an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Storage:
    """The unit of memory; views share one. Its id is its index in `Trace.storages`.

    Its lifetime is the half-open interval of op indices [alloc, free): an allocation between two ops
    counts to the later one, a free inside an op leaves it alive for that op. A storage that was alive before
    the iteration has alloc 0 and alloc_tick -1; one that outlives it has free = number of ops and
    free_tick = `Trace.ticks`. `source` is the line that allocated it ("file.py:12"), "" when unknown.
    """

    size_bytes: int
    category: Category
    alloc: int
    free: int
    alloc_tick: int
    free_tick: int
    source: str

    @property
    def born_before(self) -> bool:
        """Whether the storage was alive before the iteration."""
        return self.alloc_tick == BEFORE_FIRST_TICK


@dataclass(frozen=True, slots=True)
class Op:
    """One dispatcher call at depth 0.

    `reads` and `writes` are storage ids. `first_tick` is the number of ticks before the op began.
    `workspace_bytes` is the length of the free stretch that what it allocates (outputs and scratch) needs, in
    multiples of `Trace.alignment`: at least the peak of their sum, and more where holes are left between them,
    since nothing can be moved while an op runs. `source` is the line that called it, or "".
    """

    name: str
    phase: Phase
    duration_us: float
    source: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    first_tick: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Access:
    """One op reading or writing one storage."""

    op: int
    storage: int
    is_write: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded iteration.

    `ticks` is the number of allocation and free events. `pinned_bytes` can never leave the arena and belong
    to none of `storages`. `signature` identifies the op stream: equal signatures may share a plan.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    ticks: int
    signature: str
    torch_version: str
    device: str
    script: str
    iteration: int
    alignment: int
    pinned_bytes: int

    def outlives(self, storage: Storage) -> bool:
        """Whether `storage` is still alive when the iteration ends."""
        return storage.free_tick == self.ticks

    def recurs(self, storage: Storage) -> bool:
        """Whether `storage` is the same one in the next iteration: alive before this one and after it."""
        return storage.born_before and self.outlives(storage)


def accesses(trace: Trace) -> Iterator[Access]:
    """Yield every access in op order; within an op, reads before writes."""
    for index, op in enumerate(trace.ops):
        for storage in op.reads:
            yield Access(index, storage, is_write=False)
        for storage in op.writes:
            yield Access(index, storage, is_write=True)


def align_up(size_bytes: int, alignment: int) -> int:
    """Return `size_bytes` rounded up to a multiple of `alignment` (bytes)."""
    return -(-size_bytes // alignment) * alignment

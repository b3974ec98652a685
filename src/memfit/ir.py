"""The nouns: one recorded training iteration, and what is planned for it, as plain, immutable data.

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
class Demand:
    """What an op that is not of the iteration needs at once, in multiples of `Trace.alignment`.

    `operand_bytes` it uses, `workspace_bytes` it allocates, and `fixed_bytes` of others cannot leave the arena then.
    `small_bytes` of others are in storages so small that they leave only if nothing else makes room.
    """

    name: str
    source: str
    operand_bytes: int
    workspace_bytes: int
    fixed_bytes: int
    small_bytes: int

    @property
    def total_bytes(self) -> int:
        """The budget in which the op fits alone."""
        return self.operand_bytes + self.workspace_bytes + self.fixed_bytes + self.small_bytes


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded iteration.

    `ticks` is the number of allocation and free events. `pinned_bytes` can never leave the arena and belong
    to none of `storages`. `signature` identifies the op stream: equal signatures may share a plan. `before` is the most
    that one op needed before the iteration, as far as was recorded: None if nothing was.
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
    before: Demand | None = None

    def outlives(self, storage: Storage) -> bool:
        """Whether `storage` is still alive when the iteration ends."""
        return storage.free_tick == self.ticks

    def recurs(self, storage: Storage) -> bool:
        """Whether `storage` is the same one in the next iteration: alive before this one and after it."""
        return storage.born_before and self.outlives(storage)


class Direction(StrEnum):
    """The way a copy goes: out of the arena, or into it."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class Swap:
    """One storage's absence from the arena, by op indices counted on over the iteration's end.

    The copy out starts when op `out_after` has ended. Op `free_by` waits for it: from then on the bytes are free.
    The copy in starts when op `in_start` is about to begin, and takes its bytes from then on; op `in_before`, the
    next access, waits for it. out_after < free_by <= in_start <= in_before. A `cyclic` swap ends in the next
    iteration: its `in_before` is the next access plus the number of ops.
    """

    storage: int
    size_bytes: int
    out_after: int
    free_by: int
    in_start: int
    in_before: int
    cyclic: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What leaves and comes back, and when, for the trace of this `signature` with `op_count` ops.

    `policy` made it, for the links of `machine` (a name) and `budget_bytes`, which hold `pinned_bytes` too.
    `footprint_bytes` is what it needs once everything that stays has an address; 0 where that was not asked.
    """

    signature: str
    op_count: int
    policy: str
    machine: str
    budget_bytes: int
    swaps: tuple[Swap, ...]
    footprint_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a timeline, for swap number `swap` of the plan; microseconds since the iteration began.

    It belongs to an absence that began in this iteration, and may lie in the next one.
    """

    swap: int
    direction: Direction
    size_bytes: int
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Op `op` waited for a copy: swap number `swap` of the plan, out or in."""

    op: int
    swap: int
    direction: Direction
    duration_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a plan does in one iteration once it is steady, predicted or measured.

    Op i runs from `start_us[i]` to `end_us[i]`, after what it waits for; `resident_bytes[i]` is the most the arena
    holds meanwhile, pinned bytes and the copies' bytes included. `compute_us` is the iteration without stalls,
    `host_bytes` the most that is away at once.
    """

    start_us: tuple[float, ...]
    end_us: tuple[float, ...]
    resident_bytes: tuple[int, ...]
    stalls: tuple[Stall, ...]
    copies: tuple[Copy, ...]
    iteration_us: float
    compute_us: float
    host_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most the arena holds."""
        return max(self.resident_bytes, default=0)

    @property
    def stall_us(self) -> float:
        """The time ops wait for copies."""
        return sum(stall.duration_us for stall in self.stalls)

    @property
    def overhead(self) -> float:
        """How much longer the iteration is than its computation, as a fraction of this."""
        return self.iteration_us / self.compute_us - 1 if self.compute_us else 0.0

    def copied_bytes(self, direction: Direction) -> int:
        """Return the bytes copied in `direction` in one iteration."""
        return sum(copy.size_bytes for copy in self.copies if copy.direction is direction)


def accesses(trace: Trace) -> Iterator[Access]:
    """Yield every access in op order; within an op, reads before writes."""
    for index, op in enumerate(trace.ops):
        for storage in op.reads:
            yield Access(index, storage, is_write=False)
        for storage in op.writes:
            yield Access(index, storage, is_write=True)


def accessing_ops(trace: Trace) -> list[list[int]]:
    """Return, for each storage, the ops that access it, ascending and without repetition."""
    ops: list[dict[int, None]] = [{} for _ in trace.storages]
    for access in accesses(trace):
        ops[access.storage][access.op] = None
    return [list(found) for found in ops]


def align_up(size_bytes: int, alignment: int) -> int:
    """Return `size_bytes` rounded up to a multiple of `alignment` (bytes)."""
    return -(-size_bytes // alignment) * alignment

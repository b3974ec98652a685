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
    """The content of a storage."""

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

    Its lifetime is the half-open interval of op indices [alloc, free): an allocation between two ops counts to the
    later op, and a free inside an op leaves the storage alive for that op.

    Attributes:
        size_bytes: The size that was asked for, not rounded.
        category: The kind of its content.
        alloc: The first op of its lifetime; 0 if it was alive before the iteration.
        free: One more than the last op of its lifetime; the number of ops if it outlives the iteration.
        alloc_tick: The tick that allocated it; -1 if it was alive before the iteration.
        free_tick: The tick that freed it; `Trace.ticks` if it outlives the iteration.
        source: The line that allocated it, as "file.py:12"; "" when unknown.
        module: The innermost module in whose call it was allocated, as "Net.layers.3", from the class of the outermost
            one on; "" for none, and where that was not noted.
        stored_bytes: What of it was written when it last left for a tier that compresses; 0 if that is not known.
        pinned_from: From this op on until it is freed it stays where it is, since its address is known outside. A pin
            between two ops counts to the later one. None if there was none.
        pinned_by: The line that pinned it, as "file.py:12"; "" when unknown.
    """

    size_bytes: int
    category: Category
    alloc: int
    free: int
    alloc_tick: int
    free_tick: int
    source: str
    module: str = ""
    stored_bytes: int = 0
    pinned_from: int | None = None
    pinned_by: str = ""

    @property
    def copied_bytes(self) -> int:
        """The bytes that a copy of it moves."""
        return self.stored_bytes or self.size_bytes

    @property
    def born_before(self) -> bool:
        """Whether the storage was alive before the iteration."""
        return self.alloc_tick == BEFORE_FIRST_TICK


@dataclass(frozen=True, slots=True)
class Op:
    """One dispatcher call at depth 0.

    Attributes:
        name: The operator with its overload, as "aten::add.Tensor".
        phase: The part of the iteration it belongs to.
        duration_us: Microseconds of wall time.
        source: The line that called it, as "file.py:12"; "" when unknown.
        reads: The ids of the storages it reads.
        writes: The ids of the storages it writes.
        first_tick: The number of ticks before it began.
        workspace_bytes: The length of the free stretch that its allocations (outputs and scratch) need, in multiples
            of `Trace.alignment`: at least the peak of their sum, and more where holes are left between them, since
            nothing can be moved while an op runs.
        tensors: The types and shapes of the tensors it was given and returned, as "Float[2,3];-;Long[]>Float[2]"; ""
            where they were not noted.
        split_bytes: The working set that does for it in slices, in multiples of `Trace.alignment`; 0 if it is not known
            to give the same bits so.
    """

    name: str
    phase: Phase
    duration_us: float
    source: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    first_tick: int
    workspace_bytes: int
    tensors: str = ""
    split_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """One op that reads or writes one storage.

    Attributes:
        op: The index of the op.
        storage: The storage's id.
        is_write: Whether it writes.
    """

    op: int
    storage: int
    is_write: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """The bytes that an op outside the iteration needs at once, in multiples of `Trace.alignment`.

    Attributes:
        name: The operator.
        source: The line that called it, as "file.py:12"; "" when unknown.
        operand_bytes: The storages it uses.
        workspace_bytes: The storages it allocates.
        fixed_bytes: Other storages, which cannot leave the arena meanwhile.
        small_bytes: Other storages, so small that they leave only if nothing else makes room.
        split_bytes: What does for the op's own storages in slices; 0 if it is not known that it may run so.
    """

    name: str
    source: str
    operand_bytes: int
    workspace_bytes: int
    fixed_bytes: int
    small_bytes: int
    split_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The budget in which the op fits alone."""
        whole = self.operand_bytes + self.workspace_bytes
        own = min(self.split_bytes, whole) if self.split_bytes else whole
        return own + self.fixed_bytes + self.small_bytes


@dataclass(frozen=True, slots=True)
class Handover:
    """What was tried while the iteration was recorded: an op's output comes out the same in the place of an input.

    Attributes:
        op: The index of the op.
        giver: The id of the input. It may be needed after the op: then nothing is handed over.
        taker: The id of the output, which has its size.
    """

    op: int
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded iteration.

    Attributes:
        ops: All ops, in order; an op's index is its position.
        storages: All storages; a storage's id is its position.
        ticks: The number of allocation and free events.
        signature: A hash of the op stream. Traces with equal signatures may share a plan.
        torch_version: torch's version, as `torch.__version__`.
        device: The device, as "cpu".
        script: The script, as the command line named it; "" when unknown.
        iteration: The number of the iteration, from 0.
        alignment: Bytes; every placement is a multiple of it.
        pinned_bytes: Bytes that can never leave the arena and belong to none of `storages`.
        before: The most that one op needed before the iteration; None if nothing was recorded before it.
        handovers: The inputs in whose place an output may lie; none where that was not tried.
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
    handovers: tuple[Handover, ...] = ()

    def __repr__(self) -> str:
        about = f"{len(self.ops)} ops, {len(self.storages)} storages, iteration {self.iteration} on {self.device}"
        return f"<Trace of {self.script or 'an iteration'}: {about}, signature {self.signature}>"

    def outlives(self, storage: Storage) -> bool:
        """Whether `storage` is still alive when the iteration ends."""
        return storage.free_tick == self.ticks

    def recurs(self, storage: Storage) -> bool:
        """Whether `storage` is the same one in the next iteration: alive before this one and after it."""
        return storage.born_before and self.outlives(storage)

    def stays_from(self, storage: Storage) -> int | None:
        """Return the first op from which on `storage` stays where it is; None if it may always move.

        One that is the same in the next iteration is pinned from the first op on there.
        """
        return 0 if storage.pinned_from is not None and self.recurs(storage) else storage.pinned_from


class Direction(StrEnum):
    """The way a copy goes: out of the arena, or into it."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class Swap:
    """One storage's absence from the arena, by op indices counted on over the iteration's end.

    out_after < free_by <= in_start <= in_before. One that does not return is freed while it is away: its `in_start` and
    `in_before` are then the first op that it is not alive in.

    Attributes:
        storage: The storage's id.
        size_bytes: The storage's size.
        out_after: The copy out starts when this op has ended.
        free_by: This op waits for the copy out; from here on the bytes are free.
        in_start: The copy in starts when this op is about to begin, and takes its bytes from here on.
        in_before: The next access, which waits for the copy in.
        cyclic: Whether it ends in the next iteration; then `in_before` is the next access plus the number of ops.
        returns: Whether there is a copy in.
    """

    storage: int
    size_bytes: int
    out_after: int
    free_by: int
    in_start: int
    in_before: int
    cyclic: bool
    returns: bool = True


@dataclass(frozen=True, slots=True)
class Recompute:
    """One storage's absence without a copy: its bytes are dropped, and made again by ops that run once more.

    Attributes:
        storage: The storage's id.
        after: Its bytes are free when this op has ended.
        before: It has its value again when this op begins: its next use, or an op before which another is made from it.
            One that does not return is freed while it is away: as of `Swap.in_before`.
        ops: The ops to run for it, in order. Those of one `before` run together, each once. They run for one that does
            not return only if somebody asks for its bytes after all, until it is freed.
        returns: Whether it is made again.
    """

    storage: int
    after: int
    before: int
    ops: tuple[int, ...]
    returns: bool = True


@dataclass(frozen=True, slots=True)
class Map:
    """One op's use of storages where they wait: they take none of the arena's bytes meanwhile, and stay in the tier.

    One of `storages` that is in the arena all the same when the op begins is used there. One that the op allocates is
    never there: every op that uses it maps it. Nor is one of which all uses are mapped, if it is the same storage in
    every iteration.

    Attributes:
        op: The index of the op.
        storages: The ids of the storages, ascending.
        frame_bytes: The bytes of the arena, in multiples of `Trace.alignment`, through which the op sees them; 0 if it
            sees them in the tier itself.
    """

    op: int
    storages: tuple[int, ...]
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The storages that leave and come back, and when, for the trace of this `signature` with `op_count` ops.

    `policy` made it, for the links of `machine` (a name) and `budget_bytes`, which hold `pinned_bytes` too.
    `footprint_bytes` is what it needs once everything that stays has an address; 0 where that was not asked.
    `recomputes` name ops and storages of the trace; `swaps` those of the trace in which these are carried out, where
    ops that run again are ops, and each stay of a dropped storage is a storage (`planning.joint.transformed`).
    `maps` name ops and storages of the trace; all the rest is for the trace in which they are carried out
    (`planning.paging.mapped`).
    """

    signature: str
    op_count: int
    policy: str
    machine: str
    budget_bytes: int
    swaps: tuple[Swap, ...]
    footprint_bytes: int = 0
    recomputes: tuple[Recompute, ...] = ()
    maps: tuple[Map, ...] = ()

    def __repr__(self) -> str:
        moves = f"{len(self.swaps)} swaps, {len(self.recomputes)} recomputes"
        moves += f", {len(self.maps)} maps" if self.maps else ""
        return f"<Plan of {self.policy} for {self.machine}: {self.budget_bytes} bytes, {moves}, {self.op_count} ops>"


@dataclass(frozen=True, slots=True)
class Transformed:
    """A trace with remakings in it.

    Attributes:
        trace: The trace.
        op_of: For each of its ops the original one.
        runs_again: For each of its ops whether it runs again there.
        storage_of: For each of its storages the original one: each stay of a dropped one is a storage of its own.
        for_good: The original storages that are dropped after their last use, and gone before the program frees them.
    """

    trace: Trace
    op_of: tuple[int, ...]
    runs_again: tuple[bool, ...]
    storage_of: tuple[int, ...]
    for_good: frozenset[int] = frozenset()

    @classmethod
    def unchanged(cls, trace: Trace) -> Transformed:
        """Return `trace` itself, in which nothing is dropped."""
        ops, storages = range(len(trace.ops)), range(len(trace.storages))
        return cls(trace, tuple(ops), (False,) * len(ops), tuple(storages))


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a timeline. It belongs to an absence that began in this iteration, and may lie in the next one.

    Attributes:
        swap: The number of the swap in the plan.
        direction: Out of the arena, or into it.
        size_bytes: The bytes copied.
        start_us: Microseconds from the iteration's beginning to the copy's.
        end_us: Microseconds from the iteration's beginning to the copy's end.
    """

    swap: int
    direction: Direction
    size_bytes: int
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Stall:
    """An op's wait for a copy.

    Attributes:
        op: The index of the op that waited.
        swap: The number of the swap in the plan.
        direction: Out of the arena, or into it.
        duration_us: Microseconds.
    """

    op: int
    swap: int
    direction: Direction
    duration_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The effect of a plan in one steady iteration, predicted or measured.

    Attributes:
        start_us: For each op, microseconds from the iteration's beginning to the op's, after what it waits for.
        end_us: The same to the op's end.
        resident_bytes: For each op, the most that the arena holds meanwhile, pinned bytes and copies included.
        stalls: The waits for copies.
        copies: The copies.
        iteration_us: Microseconds of the iteration.
        compute_us: Microseconds of the iteration without stalls.
        host_bytes: The most that is away at once.
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
        """The most bytes that the arena holds."""
        return max(self.resident_bytes, default=0)

    @property
    def stall_us(self) -> float:
        """The time that ops wait for copies, in microseconds."""
        return sum(stall.duration_us for stall in self.stalls)

    @property
    def overhead(self) -> float:
        """The part by which the iteration is longer than its computation: 0.1 is 10 %."""
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

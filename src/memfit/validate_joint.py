"""Independent checker of a trace in which storages are dropped and made again, against the trace that it is made of.

It shares no code with the planners. It replays the values of both traces symbolically: a value is its op, its storage
and the values that the op read. Whether an op that runs twice on the same bytes makes the same bytes is no question for
a replay; a norm's statistics are not read by its outputs, and a second run has to leave them as they are. Swaps of the
second trace, and its bytes, are the subject of `memfit.validate_plan`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from memfit.errors import MemfitError
from memfit.ir import Op, Recompute, Storage, Trace, Transformed


class JointPromise(StrEnum):
    """The promises of a trace with remakings."""

    RECOMPUTES = "absences of living storages, ended by earlier ops"
    OPS = "same ops in the same order"
    STORAGE = "same sizes"
    ALLOCATIONS = "same allocations of each op"
    LIFETIME = "alive while in use"
    FREES = "allocated and freed when the program does"
    PINNED = "neither dropped nor made again once pinned"
    VALUES = "same values read"
    END = "same values at the end"


@dataclass(frozen=True, slots=True)
class JointViolation:
    """A broken promise.

    Attributes:
        promise: The promise.
        message: One sentence with the figures.
        op: The op of the trace with remakings; None means all together.
    """

    promise: JointPromise
    message: str
    op: int | None = None

    def __str__(self) -> str:
        return f"{self.promise}: {self.message}"


class InvalidRemakingsError(MemfitError):
    """A trace with remakings breaks a promise; `violation` says which."""

    def __init__(self, violation: JointViolation) -> None:
        super().__init__(str(violation), remedy="plan this trace again; this plan must not be used")
        self.violation = violation


def check_joint(original: Trace, made: Transformed) -> JointViolation | None:
    """Check a trace with remakings against the trace that it is made of.

    Arguments:
        original: The recorded iteration; its batch norms write their outputs and statistics only.
        made: The trace with remakings.

    Returns:
        The first broken promise, or None if every op reads what it read before.
    """
    return (
        _check_ops(original, made)
        or _check_storages(original, made)
        or _check_values(original, made)
        or _check_frees(original, made)
    )


def check_recomputes(original: Trace, recomputes: Iterable[Recompute]) -> JointViolation | None:
    """Check what a plan says about absences without copies, as far as numbers of ops and storages go.

    Arguments:
        original: The recorded iteration.
        recomputes: The absences.

    Returns:
        The first broken promise, or None if each may be tried: `check_joint` says whether it keeps the values.
    """
    for number, one in enumerate(recomputes):
        reason = _misnumbered(original, one)
        if reason:
            return JointViolation(JointPromise.RECOMPUTES, f"recompute {number} {reason}")
    return None


def require_known_recomputes(original: Trace, recomputes: Iterable[Recompute]) -> None:
    """Refuse absences without copies that name what the trace does not have.

    Arguments:
        original: The recorded iteration.
        recomputes: The absences.

    Raises:
        InvalidRemakingsError: An absence has numbers that no op or storage has, or that are out of order.
    """
    violation = check_recomputes(original, recomputes)
    if violation is not None:
        raise InvalidRemakingsError(violation)


def _misnumbered(original: Trace, one: Recompute) -> str | None:
    if not 0 <= one.storage < len(original.storages):
        return f"is of storage {one.storage}, which the trace does not have"
    if not 0 <= one.after < one.before < len(original.ops):
        return f"lasts from op {one.after} to op {one.before}, of {len(original.ops)}"
    storage = original.storages[one.storage]
    if not storage.alloc <= one.after < one.before < storage.free + (not one.returns):
        return f"drops storage {one.storage} beyond its life [{storage.alloc}, {storage.free})"
    if storage.pinned_from is not None:
        return f"drops storage {one.storage}, which is pinned"
    if not one.ops or not all(0 <= op < one.before for op in one.ops):
        return f"runs ops {one.ops[:8]} again before op {one.before}"
    return None if one.returns else _lost_for_good(original, one)


def _lost_for_good(original: Trace, one: Recompute) -> str | None:
    """Return the reason why what is dropped for good is used again, or could not be made again until it is freed."""
    storages, end = original.storages, original.storages[one.storage].free
    born = _births(original)
    writers: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(original.ops):
        for s in op.writes:
            writers[s].append(index)
        if index > one.after and one.storage in {*op.reads, *op.writes}:
            return f"drops storage {one.storage} for good, and op {index} uses it"

    def version(s: int, before: int) -> int:
        return bisect_left(writers[s], before)

    made: dict[int, int] = {}
    for index in one.ops:
        op = original.ops[index]
        for s in {*op.reads, *op.writes} - _statistics(original, op):
            is_there = storages[s].alloc <= end < storages[s].free and version(s, end) == version(s, index)
            if s not in born[index] and not is_there and made.get(s) != version(s, index):
                return f"drops storage {one.storage} for good, and op {index} could not run again: storage {s} is gone"
        made |= {s: version(s, index + 1) for s in op.writes}
    if made.get(one.storage) != version(one.storage, end):
        return f"drops storage {one.storage} for good, and ops {one.ops[:8]} do not make it"
    return None


def require_valid_joint(original: Trace, made: Transformed) -> None:
    """Refuse a trace with remakings that is broken.

    Arguments:
        original: The recorded iteration.
        made: The trace with remakings.

    Raises:
        InvalidRemakingsError: An op would read other values, or use what is not there.
    """
    violation = check_joint(original, made)
    if violation is not None:
        raise InvalidRemakingsError(violation)


def _check_ops(original: Trace, made: Transformed) -> JointViolation | None:
    firsts = [op for op, again in zip(made.op_of, made.runs_again, strict=True) if not again]
    if firsts != list(range(len(original.ops))) or len(made.op_of) != len(made.trace.ops):
        text = f"{len(firsts)} of {len(original.ops)} ops run once, or in another order"
        return JointViolation(JointPromise.OPS, text)
    for index, (op, was) in enumerate(zip(made.trace.ops, made.op_of, strict=True)):
        like = original.ops[was]
        if (op.name, op.duration_us, op.workspace_bytes) != (like.name, like.duration_us, like.workspace_bytes):
            return JointViolation(JointPromise.OPS, f"op {index} is not op {was}, {like.name}", index)
    return None


def _check_storages(original: Trace, made: Transformed) -> JointViolation | None:
    frame = (original.alignment, original.pinned_bytes)
    if (made.trace.alignment, made.trace.pinned_bytes) != frame:
        return JointViolation(JointPromise.STORAGE, "the alignment or the pinned bytes are others")
    for index, storage in enumerate(made.trace.storages):
        was = original.storages[made.storage_of[index]]
        if storage.size_bytes != was.size_bytes:
            text = f"storage {index} has {storage.size_bytes} bytes, not {was.size_bytes}"
            return JointViolation(JointPromise.STORAGE, text)
    for index, was in enumerate(original.storages):
        stays = [one for one, like in zip(made.trace.storages, made.storage_of, strict=True) if like == index]
        if (was.pinned_from is None) != all(one.pinned_from is None for one in stays):
            return JointViolation(JointPromise.PINNED, f"storage {index} is pinned in one of the traces alone")
        if was.pinned_from is not None and len(stays) > 1:
            return JointViolation(JointPromise.PINNED, f"storage {index} is pinned, and is dropped or made again")
    wanted, found = _allocations(original), _allocations(made.trace)
    for index, like in enumerate(made.op_of):
        if sorted(made.storage_of[s] for s in found[index]) != wanted[like]:
            text = f"op {index} does not allocate what op {like} does"
            return JointViolation(JointPromise.ALLOCATIONS, text, index)
    return None


def _allocations(trace: Trace) -> list[list[int]]:
    """Return, for each op, the storages that are allocated while it runs, ascending."""
    found: list[list[int]] = [[] for _ in trace.ops]
    for number, storage in enumerate(trace.storages):
        maker = storage.alloc
        if maker < len(trace.ops) and storage.alloc_tick >= trace.ops[maker].first_tick:
            found[maker].append(number)
    return found


def _check_frees(original: Trace, made: Transformed) -> JointViolation | None:
    """Check that the program allocates and frees each storage in, or right after, the same ops of its own as before.

    One that is dropped for good, and no other, is gone by then.
    """
    place = [-1, *(op for op, again in enumerate(made.runs_again) if not again)]
    own = set(place)
    begins, ends = ([-1] * len(original.storages) for _ in range(2))
    for storage, (begin, end) in zip(made.storage_of, _ops_at(made.trace), strict=True):
        begins[storage] = begin if begin in own else begins[storage]
        ends[storage] = max(end, ends[storage]) if end in own else ends[storage]  # earlier ones are drops
    for storage, (begin, end) in enumerate(_ops_at(original)):
        wanted, found = (place[begin + 1], place[end + 1]), (begins[storage], ends[storage])
        is_gone = found[0] == wanted[0] and found[1] < wanted[1]
        if found != wanted if storage not in made.for_good else not is_gone:
            text = f"storage {storage} is the program's from op {found[0]} to op {found[1]}, not {wanted}"
            return JointViolation(JointPromise.FREES, text)
    return None


def _ops_at(trace: Trace) -> list[tuple[int, int]]:
    """Return, for each storage, the ops in or after which it is allocated and freed; -1 is before the first."""
    starts = [op.first_tick for op in trace.ops]
    ticks = ((storage.alloc_tick, storage.free_tick) for storage in trace.storages)
    return [(bisect_right(starts, begin) - 1, bisect_right(starts, end) - 1) for begin, end in ticks]


def _check_values(original: Trace, made: Transformed) -> JointViolation | None:
    names: dict[object, int] = {}
    ops, storages = range(len(original.ops)), range(len(original.storages))
    before, after = _Replay(original, ops, storages, names), _Replay(made.trace, made.op_of, made.storage_of, names)
    wanted = list(before.run())
    for index, read in enumerate(after.run()):
        if read is None:
            text = f"op {index} uses a storage that is not alive"
            return JointViolation(JointPromise.LIFETIME, text, index)
        if not made.runs_again[index] and read != wanted[made.op_of[index]]:
            text = f"op {index} reads other values than op {made.op_of[index]} of the trace"
            return JointViolation(JointPromise.VALUES, text, index)
    if before.left() != after.left():
        return JointViolation(JointPromise.END, "a storage that outlives the iteration holds another value")
    return None


_Values = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Replay:
    """Goes through a trace's ops; `names`, shared between two replays, numbers the values by what they are made of."""

    trace: Trace
    op_of: Sequence[int]
    storage_of: Sequence[int]
    names: dict[object, int]
    held: dict[int, int] = field(default_factory=dict)

    def run(self) -> Iterator[_Values | None]:
        """Yield what each op reads, as original storages and values; None if it uses what is not alive."""
        born = _births(self.trace)
        self.held = {s: self._name("before", self.storage_of[s]) for s, _ in self._ends(born_before=True)}
        for index, op in enumerate(self.trace.ops):
            used = dict.fromkeys((*op.reads, *op.writes))
            if not all(self.trace.storages[s].alloc <= index < self.trace.storages[s].free for s in used):
                yield None
                continue
            statistics = _statistics(self.trace, op)
            inputs = [s for s in used if s not in statistics and s not in born[index]]
            values = tuple(sorted((self.storage_of[s], self._value(s)) for s in inputs))
            yield values
            for storage in op.writes:
                self.held[storage] = self._name(self.op_of[index], self.storage_of[storage], values)

    def left(self) -> Mapping[int, int]:
        """Return the values of the storages that outlive the iteration, by original storage."""
        return {self.storage_of[s]: self._value(s) for s, _ in self._ends(born_before=False)}

    def _ends(self, *, born_before: bool) -> Iterator[tuple[int, Storage]]:
        """Yield the storages that were there before the iteration, or that outlive it."""
        for index, storage in enumerate(self.trace.storages):
            if storage.born_before if born_before else self.trace.outlives(storage):
                yield index, storage

    def _value(self, storage: int) -> int:
        return self.held.get(storage, self._name("fresh", self.storage_of[storage]))

    def _name(self, *parts: object) -> int:
        return self.names.setdefault(parts, len(self.names))


def _statistics(trace: Trace, op: Op) -> set[int]:
    """Return what a norm writes besides its outputs, and what they are not made of."""
    name = op.name.lower()
    if "batch_norm" not in name or "backward" in name:
        return set()
    return {s for s in op.writes if trace.recurs(trace.storages[s])}


def _births(trace: Trace) -> Mapping[int, set[int]]:
    """Return, for each op, the storages allocated from its beginning to the next one's."""
    starts = [op.first_tick for op in trace.ops]
    born: dict[int, set[int]] = defaultdict(set)
    for index, storage in enumerate(trace.storages):
        born[bisect_right(starts, storage.alloc_tick) - 1].add(index)
    return born

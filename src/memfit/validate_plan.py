"""Independent checker of a plan's swaps against its trace: says which promise is broken first, and where.

It shares no code with the planner and the simulator. It looks at ops, not at times: what it accepts keeps to the
budget however slow the copies are. O(n log n) time and O(n) memory in uses, ticks and swaps, however long these are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from memfit.errors import MemfitError
from memfit.ir import Plan, Swap, Trace


class SwapPromise(StrEnum):
    """The promises of a plan's swaps."""

    TRACE = "same trace"
    STORAGE = "known storage"
    SIZE = "whole storage"
    ORDER = "order of ops"
    LIFETIME = "alive while away"
    END = "freed where it does not return"
    USE = "in the arena while in use"
    PINNED = "in the arena once pinned"
    WRITE = "not written while copied out"
    TWICE = "one absence at a time"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class SwapViolation:
    """A broken promise.

    Attributes:
        promise: The promise.
        message: One sentence with the figures.
        swap: The number of the swap; None means all together.
        op: The index of the op, if there is one.
    """

    promise: SwapPromise
    message: str
    swap: int | None = None
    op: int | None = None

    def __str__(self) -> str:
        return f"{self.promise}: {self.message}"


class InvalidSwapsError(MemfitError):
    """The swaps of a plan break a promise; `violation` says which."""

    def __init__(self, violation: SwapViolation) -> None:
        super().__init__(str(violation), remedy="plan this trace again; this plan must not be used")
        self.violation = violation


def check_plan(trace: Trace, plan: Plan) -> SwapViolation | None:
    """Check the swaps of a plan against its trace.

    Arguments:
        trace: The recorded iteration; of a plan with recomputes, the one in which they are carried out, and the plan
            is the one of its swaps alone (`planning.joint.as_plan`).
        plan: The plan.

    Returns:
        The first broken promise, or None if the trace can run by the plan's swaps.
    """
    return (
        _check_trace(trace, plan)
        or next(filter(None, (_check_swap(trace, number, swap) for number, swap in enumerate(plan.swaps))), None)
        or _check_ends(trace, plan)
        or _check_uses(trace, plan)
        or _check_twice(trace, plan)
        or _check_budget(trace, plan)
    )


def require_valid_plan(trace: Trace, plan: Plan) -> None:
    """Refuse a plan whose swaps are broken.

    Arguments:
        trace: The recorded iteration.
        plan: The plan.

    Raises:
        InvalidSwapsError: The trace cannot run by the plan's swaps.
    """
    violation = check_plan(trace, plan)
    if violation is not None:
        raise InvalidSwapsError(violation)


def _check_trace(trace: Trace, plan: Plan) -> SwapViolation | None:
    if plan.recomputes:
        text = f"the plan's swaps are of the trace in which its {len(plan.recomputes)} recomputes are carried out"
        return SwapViolation(SwapPromise.TRACE, text)
    if (plan.signature, plan.op_count) == (trace.signature, len(trace.ops)):
        return None
    text = f"the plan is for {plan.signature!r} of {plan.op_count} ops, not {trace.signature!r} of {len(trace.ops)}"
    return SwapViolation(SwapPromise.TRACE, text)


def _check_swap(trace: Trace, number: int, swap: Swap) -> SwapViolation | None:
    count = len(trace.ops)
    if not 0 <= swap.storage < len(trace.storages):
        return SwapViolation(
            SwapPromise.STORAGE, f"swap {number} is of storage {swap.storage}, which the trace does not have", number
        )
    storage = trace.storages[swap.storage]
    if swap.size_bytes != storage.size_bytes:
        text = f"swap {number} is of {swap.size_bytes} bytes, its storage has {storage.size_bytes}"
        return SwapViolation(SwapPromise.SIZE, text, number)
    ordered = swap.out_after < swap.free_by <= swap.in_start <= swap.in_before
    ordered = ordered and (swap.returns or swap.in_start == swap.in_before)
    last = swap.in_before < swap.out_after + 1 + count and swap.cyclic == (swap.in_before >= count)
    if not (0 <= swap.out_after < count and ordered and last):
        steps = (swap.out_after, swap.free_by, swap.in_start, swap.in_before)
        text = f"swap {number} goes by ops {steps}, cyclic {swap.cyclic}, of {count}"
        return SwapViolation(SwapPromise.ORDER, text, number)
    born_before = storage.alloc_tick < 0 and storage.free_tick == trace.ticks
    if swap.returns:
        alive = born_before if swap.cyclic else storage.alloc <= swap.out_after and swap.in_before < storage.free
    else:
        alive = storage.alloc_tick >= 0 and storage.alloc <= swap.out_after < storage.free
    if not alive:
        text = f"swap {number} takes storage {swap.storage} away beyond its life [{storage.alloc}, {storage.free})"
        return SwapViolation(SwapPromise.LIFETIME, text, number)
    # The same storage is pinned for good in the next iteration; and one that does not return is away until its end.
    is_back = swap.returns and not born_before
    if storage.pinned_from is not None and not (is_back and swap.in_before < storage.pinned_from):
        text = f"swap {number} has storage {swap.storage} away, which is pinned from op {storage.pinned_from} on"
        return SwapViolation(SwapPromise.PINNED, text, number)
    return None


def _check_ends(trace: Trace, plan: Plan) -> SwapViolation | None:
    """Check that what does not return is away no longer than it lives, in this iteration or as its like in the next."""
    for number, freed in _freed_away(trace, plan).items():
        swap = plan.swaps[number]
        if freed is None:
            text = (
                f"swap {number} counts storage {swap.storage} as away until op {swap.in_before}, longer than it lives"
            )
            return SwapViolation(SwapPromise.END, text, number)
    return None


def _freed_away(trace: Trace, plan: Plan) -> dict[int, int | None]:
    """Return, for each swap that does not return, the storage that this iteration frees of it; None if there is none.

    What the next iteration frees has no name here: it is one that this one frees, of the same size, and never uses.
    """
    found: dict[int, int | None] = {}
    over_the_end: list[tuple[int, int]] = []  # the ops counted on until which swaps are away, and their numbers
    for number, swap in enumerate(plan.swaps):
        storage = trace.storages[swap.storage]
        if swap.returns:
            continue
        if storage.free_tick < trace.ticks:
            found[number] = swap.storage if swap.in_before <= storage.free else None
        elif swap.free_by > len(trace.ops) + storage.alloc:  # the next iteration's like may not be there yet
            found[number] = None
        else:
            over_the_end.append((swap.in_before - len(trace.ops), number))
    left = _freed_unused(trace) if over_the_end else {}
    for end, number in sorted(over_the_end, key=lambda one: (-one[0], one[1])):  # away the longest, freed the latest
        likes = left[plan.swaps[number].size_bytes]
        found[number] = likes.pop() if likes and trace.storages[likes[-1]].free >= end else None
    return found


def _freed_unused(trace: Trace) -> dict[int, list[int]]:
    """Return, by size, what was there before that no op uses, in the order in which it is freed."""
    used = {storage for op in trace.ops for storage in (*op.reads, *op.writes)}
    found: dict[int, list[int]] = defaultdict(list)
    for number in sorted(range(len(trace.storages)), key=lambda number: trace.storages[number].free):
        storage = trace.storages[number]
        is_left = storage.alloc_tick < 0 and storage.free_tick < trace.ticks
        if is_left and number not in used and storage.pinned_from is None:
            found[storage.size_bytes].append(number)
    return found


@dataclass(frozen=True, slots=True)
class _Uses:
    """The ops that use one storage, and those of them that write it, ascending."""

    all: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


def _check_uses(trace: Trace, plan: Plan) -> SwapViolation | None:
    uses = {swap.storage: _Uses() for swap in plan.swaps}
    for at, op in enumerate(trace.ops):
        for storage in {*op.reads, *op.writes} & uses.keys():
            uses[storage].all.append(at)
        for storage in set(op.writes) & uses.keys():
            uses[storage].writes.append(at)
    first: tuple[int, int, int] | None = None  # the op, the storage and the number of the swap
    for number, swap in enumerate(plan.swaps):
        misused = _first_misuse(swap, uses[swap.storage], len(trace.ops))
        if misused is not None and (first is None or (misused, swap.storage, number) < first):
            first = misused, swap.storage, number
    return None if first is None else _misuse(plan.swaps[first[2]], first[2], first[0], len(trace.ops))


def _first_misuse(swap: Swap, uses: _Uses, count: int) -> int | None:
    """Return the first op that uses what `swap` has away, or writes it while it is copied out."""
    if not swap.returns:  # in the next iteration its like is another storage
        at = bisect_right(uses.all, swap.out_after)
        return uses.all[at] if at < len(uses.all) else None
    used = _first_within(uses.all, swap.free_by, swap.in_before, count)
    written = _first_within(uses.writes, swap.out_after + 1, swap.in_before, count)
    return min((op for op in (used, written) if op is not None), default=None)


def _first_within(ops: list[int], begin: int, end: int, count: int) -> int | None:
    """Return the first of `ops` in [begin, end), which is counted on over the iteration's end and may be empty."""
    for lo, hi in ((begin - count, end - count), (begin, end)):  # of the next iteration, which has the lower indices
        at = bisect_left(ops, lo)
        if at < len(ops) and ops[at] < hi:
            return ops[at]
    return None


def _misuse(swap: Swap, number: int, op: int, count: int) -> SwapViolation:
    if any(swap.free_by <= at < swap.in_before for at in (op, op + count)):
        text = f"op {op} uses storage {swap.storage}, which swap {number} has away"
        return SwapViolation(SwapPromise.USE, text, number, op)
    text = f"op {op} writes storage {swap.storage} while swap {number} copies it out"
    return SwapViolation(SwapPromise.WRITE, text, number, op)


@dataclass(frozen=True, slots=True)
class _Absences:
    """The absences of one storage so far: disjoint spans of ops within the iteration, ascending, and whose they are."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def first_shared(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the first op of [begin, end) that is in an absence, and the number of its swap."""
        at = bisect_right(self.ends, begin)
        if at < len(self.begins) and self.begins[at] < end:
            return max(begin, self.begins[at]), self.numbers[at]
        return None

    def add(self, begin: int, end: int, number: int) -> None:
        at = bisect_left(self.begins, begin)
        self.begins.insert(at, begin)
        self.ends.insert(at, end)
        self.numbers.insert(at, number)


def _check_twice(trace: Trace, plan: Plan) -> SwapViolation | None:
    absences: dict[int, _Absences] = defaultdict(_Absences)
    for number, swap in enumerate(plan.swaps):
        end = swap.in_before + 1 if swap.returns else min(swap.in_before, len(trace.ops))
        others, spans = absences[swap.storage], _within(swap.out_after + 1, end, len(trace.ops))
        shared = next(filter(None, (others.first_shared(*span) for span in spans)), None)
        if shared:
            text = f"swaps {shared[1]} and {number} both move storage {swap.storage} at op {shared[0]}"
            return SwapViolation(SwapPromise.TWICE, text, number, shared[0])
        for span in spans:
            others.add(*span, number)
    return None


def _within(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    """Return the ops of [begin, end), which is no longer than the iteration, as spans within it, in their order."""
    shift = begin // count * count
    begin, end = begin - shift, end - shift
    spans = [(begin, min(end, count)), (0, end - count)]
    return [span for span in spans if span[0] < span[1]]


def _check_budget(trace: Trace, plan: Plan) -> SwapViolation | None:
    changes = [0] * (len(trace.ops) + 1)
    for swap in plan.swaps:
        for begin, end in _within(swap.free_by, swap.in_start, len(trace.ops)):
            changes[begin] += _held_bytes(trace, swap.size_bytes)
            changes[end] -= _held_bytes(trace, swap.size_bytes)
    away = accumulate(changes)
    for op, (alive, absent) in enumerate(zip(_alive_bytes(trace, _ends_within_ops(trace, plan)), away, strict=False)):
        used = alive + trace.pinned_bytes - absent
        if used > plan.budget_bytes:
            text = f"op {op} holds {used} bytes, {used - plan.budget_bytes} over the budget of {plan.budget_bytes}"
            return SwapViolation(SwapPromise.BUDGET, text, None, op)
    return None


def _held_bytes(trace: Trace, size_bytes: int) -> int:
    return -(-size_bytes // trace.alignment) * trace.alignment


def _ends_within_ops(trace: Trace, plan: Plan) -> dict[int, int]:
    """Return, by tick, the bytes that are freed there of storages that count as away until that op's end."""
    found: dict[int, int] = defaultdict(int)
    for number, freed in _freed_away(trace, plan).items():
        if freed is not None and (plan.swaps[number].in_before - trace.storages[freed].free) % len(trace.ops) == 0:
            found[trace.storages[freed].free_tick] += _held_bytes(trace, plan.swaps[number].size_bytes)
    return found


def _alive_bytes(trace: Trace, freed_away: dict[int, int]) -> Iterator[int]:
    """Yield the most bytes alive at once from the moment each op may begin to the moment the next one may.

    `freed_away` (bytes by tick) make no room when they are freed: their op counts them as away all along.
    """
    changes = [0] * trace.ticks
    alive = 0
    for storage in trace.storages:
        held = _held_bytes(trace, storage.size_bytes)
        if storage.alloc_tick < 0:
            alive += held
        else:
            changes[storage.alloc_tick] += held
        if storage.free_tick < trace.ticks:
            changes[storage.free_tick] -= held
    tick = 0
    for op in range(len(trace.ops)):
        most, gone = alive, 0
        until = trace.ops[op + 1].first_tick if op + 1 < len(trace.ops) else trace.ticks
        while tick < until:
            alive += changes[tick]
            gone += freed_away.get(tick, 0)
            most = max(most, alive + gone)
            tick += 1
        yield most

"""Independent checker of a plan's swaps against its trace: says which promise is broken first, and where.

It shares no code with the planner and the simulator. It looks at ops, not at times: what it accepts keeps to the
budget however slow the copies are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from memfit.errors import MemfitError
from memfit.ir import Plan, Swap, Trace


class SwapPromise(StrEnum):
    """The promises of a plan's swaps."""

    TRACE = "same trace"
    STORAGE = "known storage"
    SIZE = "whole storage"
    ORDER = "order of ops"
    LIFETIME = "alive while away"
    USE = "in the arena while in use"
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
        trace: The recorded iteration.
        plan: The plan.

    Returns:
        The first broken promise, or None if the trace can run by the plan's swaps.
    """
    return (
        _check_trace(trace, plan)
        or next(filter(None, (_check_swap(trace, number, swap) for number, swap in enumerate(plan.swaps))), None)
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
    last = swap.in_before < swap.out_after + 1 + count and swap.cyclic == (swap.in_before >= count)
    if not (0 <= swap.out_after < count and ordered and last):
        steps = (swap.out_after, swap.free_by, swap.in_start, swap.in_before)
        text = f"swap {number} goes by ops {steps}, cyclic {swap.cyclic}, of {count}"
        return SwapViolation(SwapPromise.ORDER, text, number)
    born_before = storage.alloc_tick < 0 and storage.free_tick == trace.ticks
    alive = born_before if swap.cyclic else storage.alloc <= swap.out_after and swap.in_before < storage.free
    if not alive:
        text = f"swap {number} takes storage {swap.storage} away beyond its life [{storage.alloc}, {storage.free})"
        return SwapViolation(SwapPromise.LIFETIME, text, number)
    return None


def _check_uses(trace: Trace, plan: Plan) -> SwapViolation | None:
    by_storage: dict[int, list[int]] = {}
    for number, swap in enumerate(plan.swaps):
        by_storage.setdefault(swap.storage, []).append(number)
    for at, op in enumerate(trace.ops):
        for storage in {*op.reads, *op.writes}:
            for number in by_storage.get(storage, ()):
                found = _misuse(plan.swaps[number], number, at, storage in op.writes, len(trace.ops))
                if found:
                    return found
    return None


def _misuse(swap: Swap, number: int, op: int, is_write: bool, count: int) -> SwapViolation | None:
    for at in (op, op + count):
        if swap.free_by <= at < swap.in_before:
            text = f"op {op} uses storage {swap.storage}, which swap {number} has away"
            return SwapViolation(SwapPromise.USE, text, number, op)
        if is_write and swap.out_after < at < swap.in_before:
            text = f"op {op} writes storage {swap.storage} while swap {number} copies it out"
            return SwapViolation(SwapPromise.WRITE, text, number, op)
    return None


def _check_twice(trace: Trace, plan: Plan) -> SwapViolation | None:
    seen: dict[tuple[int, int], int] = {}
    for number, swap in enumerate(plan.swaps):
        for at in range(swap.out_after + 1, swap.in_before + 1):
            key = (swap.storage, at % len(trace.ops))
            if seen.setdefault(key, number) != number:
                text = f"swaps {seen[key]} and {number} both move storage {swap.storage} at op {key[1]}"
                return SwapViolation(SwapPromise.TWICE, text, number, key[1])
    return None


def _check_budget(trace: Trace, plan: Plan) -> SwapViolation | None:
    away = [0] * len(trace.ops)
    for swap in plan.swaps:
        held = -(-swap.size_bytes // trace.alignment) * trace.alignment
        for at in range(swap.free_by, swap.in_start):
            away[at % len(away)] += held
    for op, alive in enumerate(_alive_bytes(trace)):
        used = alive + trace.pinned_bytes - away[op]
        if used > plan.budget_bytes:
            text = f"op {op} holds {used} bytes, {used - plan.budget_bytes} over the budget of {plan.budget_bytes}"
            return SwapViolation(SwapPromise.BUDGET, text, None, op)
    return None


def _alive_bytes(trace: Trace) -> Iterator[int]:
    """Yield the most bytes alive at once from the moment each op may begin to the moment the next one may."""
    changes = [0] * trace.ticks
    alive = 0
    for storage in trace.storages:
        held = -(-storage.size_bytes // trace.alignment) * trace.alignment
        if storage.alloc_tick < 0:
            alive += held
        else:
            changes[storage.alloc_tick] += held
        if storage.free_tick < trace.ticks:
            changes[storage.free_tick] -= held
    tick = 0
    for op in range(len(trace.ops)):
        most = alive
        until = trace.ops[op + 1].first_tick if op + 1 < len(trace.ops) else trace.ticks
        while tick < until:
            alive += changes[tick]
            most = max(most, alive)
            tick += 1
        yield most

"""The promises of a plan's swaps, looked up op by op and swap by swap: slow, and plain enough to be believed."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.ir import Plan, Trace, align_up
from memfit.validate_plan import SwapPromise

Broken = tuple[SwapPromise, int | None, int | None]
"""The promise, the number of the swap and the op."""


def first_broken(trace: Trace, plan: Plan) -> Broken | None:
    """The first promise that swaps break whose own figures are in order."""
    return next((found for find in (_pins, _uses, _twice, _budget) for found in find(trace, plan)), None)


def _pins(trace: Trace, plan: Plan) -> Iterator[Broken]:
    """A storage that the next iteration has too is pinned there from its first op on, and its like is there already."""
    for number, swap in enumerate(plan.swaps):
        storage = trace.storages[swap.storage]
        if storage.pinned_from is None:
            continue
        last = swap.in_before if swap.returns else len(trace.ops)
        if trace.recurs(storage) or last >= storage.pinned_from:
            yield SwapPromise.PINNED, number, None


def _uses(trace: Trace, plan: Plan) -> Iterator[Broken]:
    for op, used in enumerate(trace.ops):
        for storage in sorted({*used.reads, *used.writes}):
            for number, swap in enumerate(plan.swaps):
                for at in (op, op + len(trace.ops)):
                    if swap.storage == storage and swap.free_by <= at < swap.in_before:
                        yield SwapPromise.USE, number, op
                    elif swap.storage == storage and storage in used.writes and swap.out_after < at < swap.in_before:
                        yield SwapPromise.WRITE, number, op


def _twice(trace: Trace, plan: Plan) -> Iterator[Broken]:
    seen = set()
    for number, swap in enumerate(plan.swaps):
        moved = [(swap.storage, at % len(trace.ops)) for at in range(swap.out_after + 1, swap.in_before + 1)]
        for storage, op in moved:
            if (storage, op) in seen:
                yield SwapPromise.TWICE, number, op
        seen.update(moved)


def _budget(trace: Trace, plan: Plan) -> Iterator[Broken]:
    for op in range(len(trace.ops)):
        away = sum(
            align_up(swap.size_bytes, trace.alignment)
            for swap in plan.swaps
            for at in (op, op + len(trace.ops))
            if swap.free_by <= at < swap.in_start
        )
        if _alive_bytes(trace, op) + trace.pinned_bytes - away > plan.budget_bytes:
            yield SwapPromise.BUDGET, None, op


def _alive_bytes(trace: Trace, op: int) -> int:
    """The most bytes alive at a moment after some tick, from before this op's ticks to before the next op's."""
    begin = trace.ops[op].first_tick if op else 0
    end = trace.ops[op + 1].first_tick if op + 1 < len(trace.ops) else trace.ticks
    return max(
        sum(align_up(s.size_bytes, trace.alignment) for s in trace.storages if s.alloc_tick < ticks <= s.free_tick)
        for ticks in range(begin, end + 1)
    )

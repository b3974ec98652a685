"""TFLMS (IBM Large Model Support): swap what waits for more than a threshold of levels, come back some levels ahead.

A level is an op here, since the order of ops is given. The threshold is the largest whose swaps fit, the number of ops
ahead the largest that still fits, both found by binary search. Consumers near to each other share a swap-in since a gap
reaches from one use to the next.
"""

from __future__ import annotations

from collections.abc import Callable

from memfit.baselines.policies.policy import Times, all_gaps, overlapped, plan_that_waits_for_room
from memfit.ir import Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.simulate import planned_bytes


def tflms(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan of the largest threshold and lead that fit; raises BudgetError if none does."""
    times, gaps = Times.of(trace), all_gaps(trace)

    def swaps(threshold: int, ahead: int) -> list[Swap]:
        found = []
        for gap in gaps:
            end = end_of(trace, gap)
            if end - gap.after > threshold:
                free_by = overlapped(trace, machine, times, gap).free_by
                found.append(
                    swap_of(trace, gap, min(free_by, end - ahead), max(min(free_by, end - ahead), end - ahead))
                )
        return [swap for swap in found if swap.out_after < swap.free_by < swap.in_start]

    def fits(threshold: int, ahead: int) -> bool:
        return bool(planned_bytes(trace, swaps(threshold, ahead)).max() <= budget_bytes)

    count = len(trace.ops)
    threshold = _largest(0, count, lambda value: fits(value, 1))
    ahead = _largest(1, count, lambda value: fits(threshold, value))
    return plan_that_waits_for_room("tflms", trace, machine, budget_bytes, swaps(threshold, ahead))


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest value of [low, high] that holds, if what holds holds below too; `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low

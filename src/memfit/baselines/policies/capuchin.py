"""Capuchin (ASPLOS 2020), its swap part: by free time, and a swap-in that comes late is triggered earlier.

The free time of a gap is the time between its uses less that of both copies. Gaps are swapped by free time, the longest
first, until the peak fits; a negative one is a swap that has to be waited for. The measured run is the simulator's.
"""

from __future__ import annotations

from dataclasses import replace

from memfit.baselines.policies.policy import Times, all_gaps, overlapped, plan_that_waits_for_room
from memfit.ir import Direction, Plan, Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.lifetimes import Gap
from memfit.simulate import Simulator, add_span, load_bytes, planned_bytes

_FEEDBACK_RUNS = 5


def capuchin(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan by free time, after some runs of feedback; raises BudgetError if it does not fit."""
    swaps = fed_back(trace, machine, budget_bytes, _by_free_time(trace, machine, budget_bytes))
    return plan_that_waits_for_room("capuchin", trace, machine, budget_bytes, swaps)


def free_us(trace: Trace, machine: Machine, times: Times, gap: Gap) -> float:
    """Return the free time of `gap` in microseconds."""
    copied = trace.storages[gap.storage].copied_bytes
    copies_us = machine.out.copy_us(copied) + machine.into.copy_us(copied)
    return times.begin(end_of(trace, gap)) - times.begin(gap.after + 1) - copies_us


def swap_by_free_time(trace: Trace, machine: Machine, times: Times, gap: Gap) -> Swap:
    """Return the swap of `gap` beside the ops; one without free time is waited for at both ends of the gap."""
    swap = overlapped(trace, machine, times, gap)
    if free_us(trace, machine, times, gap) >= 0:
        return swap
    return replace(swap, free_by=gap.after + 1, in_start=swap.in_before)


def fed_back(trace: Trace, machine: Machine, budget_bytes: int, swaps: list[Swap]) -> list[Swap]:
    """Return `swaps` after some runs in which late ones are triggered earlier."""
    for _ in range(_FEEDBACK_RUNS):
        earlier = _earlier(trace, machine, budget_bytes, swaps)
        if earlier == swaps:
            break
        swaps = earlier
    return swaps


def _by_free_time(trace: Trace, machine: Machine, budget_bytes: int) -> list[Swap]:
    times = Times.of(trace)
    held = load_bytes(trace)
    swaps: list[Swap] = []
    order = {gap: -free_us(trace, machine, times, gap) for gap in all_gaps(trace)}
    for gap in sorted(order, key=lambda gap: (order[gap], gap.storage, gap.after)):
        if int(held.max()) <= budget_bytes:
            break
        swap = swap_by_free_time(trace, machine, times, gap)
        needed = held.copy()
        add_span(needed, swap.free_by, swap.in_start, -align_up(gap.size_bytes, trace.alignment))
        if (needed < held)[held > budget_bytes].any():
            held, swaps = needed, [*swaps, swap]
    return swaps


def _earlier(trace: Trace, machine: Machine, budget_bytes: int, swaps: list[Swap]) -> list[Swap]:
    """Return `swaps` with the trigger of each late one moved by what it was late, where there is room."""
    timeline = Simulator(trace, machine).timeline(swaps)
    times, moved = Times.of(trace), list(swaps)
    room = budget_bytes - planned_bytes(trace, swaps)
    for stall in timeline.stalls:
        if stall.direction is not Direction.IN:
            continue
        swap = moved[stall.swap]
        held = align_up(swap.size_bytes, trace.alignment)
        wanted_us = times.begin(swap.in_start) - stall.duration_us
        in_start = times.last_until(wanted_us, swap.free_by, swap.in_start)
        if all(room[op % len(room)] >= held for op in range(in_start, swap.in_start)):
            add_span(room, in_start, swap.in_start, -held)
            moved[stall.swap] = replace(swap, in_start=in_start)
    return moved

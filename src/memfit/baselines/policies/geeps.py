"""GeePS (EuroSys 2016): all but pinned storages live in host memory; an op's operands are copied in ahead, in order.

Every gap is swapped, with the copy in one op ahead (the double buffer), then storages are pinned while they fit: first
those alive at the peak of what is in use, the largest first, then any.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from memfit.baselines.policies.policy import all_gaps, plan_that_waits_for_room
from memfit.ir import Plan, Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.planning.lifetimes import Gap, working_sets
from memfit.simulate import add_span, planned_bytes

_AHEAD = 1  # ops


def geeps(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that swaps all that is not pinned; raises BudgetError if that does not fit."""
    swaps = {gap: _double_buffered(trace, gap) for gap in all_gaps(trace)}
    swaps = {gap: swap for gap, swap in swaps.items() if swap.free_by < swap.in_start}
    held = planned_bytes(trace, list(swaps.values()))
    by_storage: dict[int, list[Gap]] = defaultdict(list)
    for gap in swaps:
        by_storage[gap.storage].append(gap)
    for storage in _pinning_order(trace):
        its = by_storage[storage]
        with_it = held.copy()
        for gap in its:
            _keep(with_it, trace, swaps[gap])
        if int(with_it.max()) <= budget_bytes:
            held = with_it
            for gap in its:
                del swaps[gap]
    return plan_that_waits_for_room("geeps", trace, machine, budget_bytes, swaps.values())


def _double_buffered(trace: Trace, gap: Gap) -> Swap:
    end = end_of(trace, gap)
    free_by = min(gap.after + 1 + _AHEAD, end)
    return swap_of(trace, gap, free_by, max(free_by, end - _AHEAD))


def _pinning_order(trace: Trace) -> list[int]:
    busiest = int(np.argmax(working_sets(trace, aligned=True)))
    storages = range(len(trace.storages))

    def rank(index: int) -> tuple[bool, int, int]:
        storage = trace.storages[index]
        return (not storage.alloc <= busiest < storage.free, -storage.size_bytes, index)

    return sorted(storages, key=rank)


def _keep(held: np.ndarray[tuple[int], np.dtype[np.int64]], trace: Trace, swap: Swap) -> None:
    add_span(held, swap.free_by, swap.in_start, align_up(swap.size_bytes, trace.alignment))

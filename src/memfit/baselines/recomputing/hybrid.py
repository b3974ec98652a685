"""Swap the convolutions, recompute the norms and activations (as surveys of memory optimisation propose it).

Norms, activations, poolings and dropouts cost little time for many bytes: of these are dropped, the most bytes a
microsecond first, as many as the budget asks for. If all are not enough, outputs of convolutions and of products of
matrices are swapped, the largest first, each on its way as long as its copy alone takes;
if that is too long, copies are waited for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from memfit.baselines.policies.policy import Times, overlapped, plan_that_waits_for_room
from memfit.baselines.recomputing.drops import Droppable, Droppables, Drops, counts, gaps_within
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.simulate import planned_bytes


def hybrid(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that recomputes what is cheap and swaps what is dear; raises BudgetError if it does not fit."""
    drops = Droppables(trace)
    cheap = [each for each in drops.waiting if drops.is_cheap(each)]
    cheap.sort(key=lambda each: (each.us / each.gap.size_bytes, each.value))
    found = _fitting(drops, cheap, budget_bytes)
    made = found.made.trace
    dear = [each.gap for each in drops.waiting if drops.is_checkpoint(each)]
    gaps = gaps_within(found.made, dear, len(drops.trace.ops) - 1)
    gaps.sort(key=lambda gap: (-gap.size_bytes * gap.duration_us, gap.storage, gap.after))
    times = Times.of(made)
    swaps = [overlapped(made, machine, times, gap) for gap in gaps]
    if _held(made, swaps) > budget_bytes:
        swaps = [swap_of(made, gap, gap.after + 1, end_of(made, gap)) for gap in gaps]
    count = bisect_left(range(len(swaps)), -budget_bytes, key=lambda number: -_held(made, swaps[:number]))
    return mixed(
        "swap-convolutions",
        trace,
        machine,
        budget_bytes,
        found.recomputes,
        found.made,
        swaps[:count],
        plan_that_waits_for_room,
    )


def _fitting(drops: Droppables, cheap: list[Droppable], budget_bytes: int) -> Drops:
    """Return the trace with the fewest drops that fit; that of the least peak if none does."""
    least: Drops | None = None
    for count in counts(len(cheap)):
        found = drops.carried_out(cheap[:count])
        if found.peak_bytes <= budget_bytes:
            return found
        if least is None or found.peak_bytes < least.peak_bytes:
            least = found
    return least or drops.carried_out(())


def _held(made: Trace, swaps: Sequence[Swap]) -> int:
    return int(planned_bytes(made, swaps).max())

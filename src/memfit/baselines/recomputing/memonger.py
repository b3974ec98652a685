"""Memonger (Chen, Xu, Zhang, Guestrin, arXiv 1604.06174): segments are dropped, and made again one after the other.

What crosses a cut between two segments stays; all else that a segment leaves for the backward part is dropped, and
made again as a whole when the backward part comes to it. The last segment stays. The authors also keep what is dear to
make within a segment, by hand ("mirror" of cheap ops only), which is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from memfit.baselines.policies.policy import too_large
from memfit.baselines.recomputing.drops import Droppable, Droppables, Drops
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Trace, align_up
from memfit.machine import Machine

_SIZES = 24
"""The budgets a segment that are tried, from the largest storage to all of them, in equal ratios."""


def memonger_sqrt(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan of sqrt(n) segments of n saved storages (section 4.2), at any budget; raises BudgetError."""
    drops = Droppables(trace)
    length = max(isqrt(len(drops.waiting)), 1)
    found = _segments(drops, [each.writer + 1 for each in drops.waiting[length - 1 :: length]])
    return mixed("memonger-sqrt", trace, machine, budget_bytes, found.recomputes, found.made, ())


def memonger_budget(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the fastest plan whose segments are cut at a number of bytes (algorithm 3), searched on a grid.

    Raises BudgetError if none fits.
    """
    drops = Droppables(trace)
    plain = drops.carried_out(())
    tried = [plain]
    if plain.peak_bytes > budget_bytes:
        tried += [_segments(drops, cuts) for cuts in sorted({_cuts(drops, size) for size in _sizes(drops)})]
    fitting = [each for each in tried if each.peak_bytes <= budget_bytes]
    if not fitting:
        raise too_large("memonger-budget", budget_bytes, min(each.peak_bytes for each in tried))
    best = min(fitting, key=lambda each: each.added_us)
    return mixed("memonger-budget", trace, machine, budget_bytes, best.recomputes, best.made, ())


def _sizes(drops: Droppables) -> list[float]:
    held = [_held(drops, each) for each in drops.waiting]
    if not held:
        return []
    ratio = (sum(held) / max(held)) ** (1 / (_SIZES - 1))
    return [max(held) * ratio**step for step in range(_SIZES)]


def _held(drops: Droppables, each: Droppable) -> int:
    return align_up(each.gap.size_bytes, drops.trace.alignment)


def _cuts(drops: Droppables, size_bytes: float) -> tuple[int, ...]:
    """Return the ops before which a segment begins: one ends as soon as what it drops exceeds `size_bytes`."""
    cuts, within = [], 0
    for each in drops.waiting:
        within += _held(drops, each)
        if within > size_bytes:
            cuts.append(each.writer + 1)
            within = 0
    return tuple(cuts)


def _segments(drops: Droppables, cuts: Sequence[int]) -> Drops:
    """Return the drops of all segments but the last: what is written and last used forward in one of them."""
    last = max((cut for cut in cuts if cut < drops.turn), default=0)
    chosen = [
        each
        for each in drops.waiting
        if each.gap.after < last and not any(each.writer < cut <= each.gap.after for cut in cuts)
    ]
    return drops.carried_out(chosen)

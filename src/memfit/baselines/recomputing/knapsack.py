"""torch's activation memory budget (torch._functorch.partitioners): a knapsack of what is saved for the backward part.

`get_saved_values_knapsack` with `dp_knapsack`: of the storages that may be made again, those are kept whose own ops
take the most time together, within a number of bytes (0/1 knapsack, sizes in parts of the whole). All else is dropped
after the forward part and made again for the backward part. The number of bytes is the largest whose trace fits the
budget. The minimum cut that torch begins with, which chooses among the storages of fused kernels, cannot be expressed
on a trace: here all storages that wait are weighed, and long chains of cheap ones are not kept apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memfit.baselines.recomputing.drops import Droppable, Droppables, counts
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Trace
from memfit.machine import Machine

_PARTS = 1000
"""The bytes of all storages are cut into so many."""


def torch_knapsack(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the fastest plan of those that keep some part of the bytes; raises BudgetError if none fits."""
    drops = Droppables(trace)
    found = drops.carried_out(())
    if found.peak_bytes > budget_bytes:
        knapsack = _Knapsack(drops)
        tried = [drops.carried_out(knapsack.dropped(parts)) for parts in counts(_PARTS)]
        found = min(tried, key=lambda each: (max(each.peak_bytes, budget_bytes), each.added_us))
    return mixed("torch-knapsack", trace, machine, budget_bytes, found.recomputes, found.made, ())


class _Knapsack:
    """The table of the dynamic program: whether each storage is kept, for each number of parts."""

    def __init__(self, drops: Droppables) -> None:
        self.items = drops.waiting
        total = sum(each.gap.size_bytes for each in self.items)
        self.parts = [-(-each.gap.size_bytes * _PARTS // max(total, 1)) for each in self.items]
        best = np.zeros(_PARTS + 1)
        self.taken = [self._take(best, drops, *item) for item in zip(self.items, self.parts, strict=True)]

    def _take(self, best: NDArray[np.float64], drops: Droppables, item: Droppable, parts: int) -> NDArray[np.bool_]:
        """Weigh one more storage; return for each number of parts whether it is kept."""
        with_it = best[: max(len(best) - parts, 0)] + sum(drops.trace.ops[op].duration_us for op in item.makers)
        taken = np.zeros(len(best), dtype=bool)
        taken[parts:] = with_it > best[parts:]
        best[parts:] = np.maximum(best[parts:], with_it)
        return taken

    def dropped(self, parts: int) -> list[Droppable]:
        """Return what is not kept when `parts` parts may be."""
        left: list[Droppable] = []
        for item, size, taken in zip(reversed(self.items), reversed(self.parts), reversed(self.taken), strict=True):
            if taken[parts]:
                parts -= size
            else:
                left.append(item)
        return left

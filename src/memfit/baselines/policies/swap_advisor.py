"""SwapAdvisor (ASPLOS 2020): a genetic search over plans that evict what is used furthest in the future.

The published search also changes the order of ops and the size classes of its pools; here the order is the trace's and
memory has no classes, so that what is searched is how much further or nearer each storage counts when a victim is
chosen. A victim leaves right after its last use, is waited for only where its room is needed, and comes back as early
as there is room.
"""

from __future__ import annotations

import random
from dataclasses import replace

from memfit.baselines.policies.policy import Times, all_gaps, overlapped, plan_of_swaps
from memfit.baselines.policies.reactive import Reactive
from memfit.ir import Plan, Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.slack import relax
from memfit.planning.lifetimes import Gap
from memfit.simulate import Simulator, add_span, planned_bytes

_POPULATION, _GENERATIONS = 8, 6
_WORK = 40_000  # ops x gaps x plans: fewer generations on large traces, so that a plan takes seconds


def swap_advisor(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the fastest plan of the search; raises BudgetError if an op cannot fit."""
    search = _Search(trace, machine, budget_bytes)
    return plan_of_swaps("swap-advisor", trace, machine, budget_bytes, search.run())


class _Search:
    """Genes are ops by which a storage's next use counts as later, one for each storage."""

    def __init__(self, trace: Trace, machine: Machine, budget_bytes: int) -> None:
        self._trace, self._machine, self._budget = trace, machine, budget_bytes
        self._gaps, self._times = all_gaps(trace), Times.of(trace)
        self._by_use = {(gap.storage, gap.before): gap for gap in self._gaps}
        self._simulator = Simulator(trace, machine)
        self._random = random.Random(0)

    def run(self) -> list[Swap]:
        genes = [[0.0] * len(self._trace.storages)]
        genes += [self._mutated(genes[0]) for _ in range(_POPULATION - 1)]
        ranked = sorted(map(self._judge, genes), key=lambda row: row[0])
        generations = min(_GENERATIONS, 1 + _WORK // (len(self._trace.ops) + len(self._gaps)))
        for _ in range(generations):
            parents = [row[1] for row in ranked[: _POPULATION // 2]]
            children = [self._mutated(self._crossed(*self._random.sample(parents, 2))) for _ in parents]
            ranked = sorted([*ranked, *map(self._judge, children)], key=lambda row: row[0])[:_POPULATION]
        return ranked[0][2]

    def _judge(self, genes: list[float]) -> tuple[float, list[float], list[Swap]]:
        reactive = Reactive(self._trace, self._gaps, lambda gap, _last, next_: next_ + genes[gap.storage])
        swaps = relax(self._trace, self._widened(reactive.swaps(self._budget)), self._budget)
        return self._simulator.timeline(swaps).iteration_us, genes, swaps

    def _widened(self, swaps: list[Swap]) -> list[Swap]:
        """Return `swaps` with each copy out right after its last use, and each copy in as early as fits."""
        room = self._budget - planned_bytes(self._trace, swaps)
        wide = []
        for swap in sorted(map(self._early_out, swaps), key=lambda swap: (swap.in_before, swap.storage)):
            held = align_up(swap.size_bytes, self._trace.alignment)
            in_start = swap.in_start
            while in_start > self._wanted(swap) and room[(in_start - 1) % len(room)] >= held:
                in_start -= 1
            add_span(room, in_start, swap.in_start, -held)
            wide.append(replace(swap, in_start=in_start))
        return wide

    def _early_out(self, swap: Swap) -> Swap:
        gap = self._gap(swap)
        count = len(self._trace.ops)
        shift = count if gap.after > swap.out_after % count or swap.out_after >= count else 0
        if gap.after + 1 >= swap.free_by or shift:
            return swap
        return replace(swap, out_after=gap.after)

    def _wanted(self, swap: Swap) -> int:
        """Return the op at which the copy in hides behind the ops before its use."""
        alone = overlapped(self._trace, self._machine, self._times, self._gap(swap))
        return max(swap.free_by, swap.in_before - (alone.in_before - alone.in_start))

    def _gap(self, swap: Swap) -> Gap:
        return self._by_use[swap.storage, swap.in_before % len(self._trace.ops)]

    def _mutated(self, genes: list[float]) -> list[float]:
        span = len(self._trace.ops) / 4
        return [gene + self._random.gauss(0, span) if self._random.random() < 0.2 else gene for gene in genes]

    def _crossed(self, one: list[float], other: list[float]) -> list[float]:
        return [a if self._random.random() < 0.5 else b for a, b in zip(one, other, strict=True)]

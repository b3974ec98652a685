"""AutoSwap as published (arXiv 1903.06631): candidates at the one peak, four scores, their best, their combination.

The trace is laid out three times, so that a gap may run over the end of the iteration. What the static timeline decides
becomes a plan, and is then judged like every other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from memfit.baselines.policies.bayes import best_weights
from memfit.baselines.policies.policy import all_gaps, finish, too_large
from memfit.baselines.policies.published import (
    Absence,
    Events,
    Scheduled,
    aoa,
    doa,
    schedule,
    select,
    swdoa,
    wdoa,
)
from memfit.errors import BudgetError
from memfit.ir import Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.lifetimes import Gap
from memfit.simulate import Simulator, load_bytes

LEAST_BYTES = 1 << 20
"""The published floor of a candidate."""
SCORES = ("aoa", "doa", "wdoa", "swdoa")


def autoswap(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the fastest of the plans by each score; raises BudgetError if none fits."""
    problem = _Problem.of(trace, machine, budget_bytes)
    return problem.fastest("autoswap", [problem.scores(name) for name in SCORES])


def autoswap_score(score: str, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan by one of `SCORES`; raises BudgetError if it does not fit."""
    problem = _Problem.of(trace, machine, budget_bytes)
    return problem.fastest(f"autoswap-{score}", [problem.scores(score)])


def autoswap_bayes(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan by the best weighted sum of the scores; raises UsageError without bayesian-optimization."""
    problem = _Problem.of(trace, machine, budget_bytes)
    rows = [_normal(problem.scores(name)) for name in SCORES]
    weights = best_weights(lambda w: problem.static_stall_us(_mixed(w, rows)), len(rows))
    return problem.fastest("autoswap-bayes", [_mixed(weights, rows)])


BY_SCORE: dict[str, Callable[[Trace, Machine, int], Plan]] = {
    f"autoswap-{score}": partial(autoswap_score, score) for score in SCORES
}
"""One policy for each score, by its name."""


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    trace: Trace
    machine: Machine
    budget_bytes: int
    events: Events
    gaps: list[Gap]
    absences: list[Absence]

    @classmethod
    def of(cls, trace: Trace, machine: Machine, budget_bytes: int) -> _Problem:
        events = _events(trace)
        peak = len(trace.ops) + int(load_bytes(trace).argmax())
        floor = _floor(trace)
        gaps = [gap for gap in all_gaps(trace) if gap.size_bytes >= floor]
        absences = [a for index, gap in enumerate(gaps) for a in _straddling(trace, gap, index, peak)]
        return cls(trace, machine, budget_bytes, events, gaps, absences)

    def scores(self, name: str) -> list[float]:
        if name in ("wdoa", "swdoa"):
            weighted = wdoa(self.events, self.absences, self.budget_bytes)
            return weighted if name == "wdoa" else swdoa(self.events, self.absences)
        return (aoa if name == "aoa" else doa)(self.events, self.absences, self.machine)

    def static_stall_us(self, scores: Sequence[float]) -> float:
        return sum(one.stall_us for one in self._scheduled(scores))

    def fastest(self, name: str, rows: Sequence[Sequence[float]]) -> Plan:
        """Return the fastest plan by any of these scores; raises the last BudgetError if none fits."""
        simulator, best, least = Simulator(self.trace, self.machine), None, None
        for scores in rows:
            swaps = [self._swap(one) for one in self._scheduled(scores)]
            useful = [swap for swap in swaps if swap.free_by < swap.in_start]
            try:
                plan = finish(name, self.trace, self.machine, self.budget_bytes, useful)
            except BudgetError as error:
                least = min(least or error.required_bytes or 0, error.required_bytes or 0)
                continue
            took_us = simulator.timeline(plan.swaps).iteration_us
            if best is None or took_us < best[0]:
                best = (took_us, plan)
        if best is None:
            raise too_large(name, self.budget_bytes, least or 0)
        return best[1]

    def _scheduled(self, scores: Sequence[float]) -> list[Scheduled]:
        chosen = select(self.events, self.absences, scores, self.budget_bytes)
        return schedule(self.events, chosen, self.machine, self.budget_bytes)

    def _swap(self, one: Scheduled) -> Swap:
        gap = self.gaps[one.absence.tag]
        shift = one.absence.after - gap.after
        end = end_of(self.trace, gap)
        free_by = min(max(one.gone + 1 - shift, gap.after + 1), end)
        in_start = min(max(one.back - shift, free_by), end)
        return Swap(gap.storage, gap.size_bytes, gap.after, free_by, in_start, end, gap.cyclic)


def _floor(trace: Trace) -> int:
    """Return the published floor, or less where the peak itself is small: 1 MiB of the 650 MB it was meant for."""
    return min(LEAST_BYTES, int(load_bytes(trace).max()) // 600)


def _events(trace: Trace) -> Events:
    count = len(trace.ops)
    ends = np.cumsum(np.tile([op.duration_us for op in trace.ops], 3))
    begins = np.concatenate(([0.0], ends[:-1]))
    return Events(ends, begins, np.tile(load_bytes(trace), 3), count, 2 * count)


def _straddling(trace: Trace, gap: Gap, tag: int, peak: int) -> list[Absence]:
    count = len(trace.ops)
    spans = [(gap.after + shift, end_of(trace, gap) + shift) for shift in (0, count)]
    return [Absence(after, before, gap.size_bytes, tag) for after, before in spans if after < peak < before]


def _normal(scores: Sequence[float]) -> list[float]:
    largest = max((abs(score) for score in scores), default=0.0)
    return [score / largest if largest else 0.0 for score in scores]


def _mixed(weights: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(w * score for w, score in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]

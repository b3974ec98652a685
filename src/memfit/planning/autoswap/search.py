"""Swaps under a budget with the least added time, and the least memory at no added time.

Which gaps to swap is found by a local search that schedules and times every choice (native/simulator): copies out at
once, in first-in first-out order; copies in as late as the link allows, earlier ones never delayed, and not before
there is room. The search counts its work and reads no clock, so that the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from memfit import _native
from memfit.arrays import Int64Array
from memfit.errors import BudgetError
from memfit.ir import Plan, Swap, Timeline, Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.by_score import SCORES, ByScore
from memfit.planning.autoswap.candidates import ANY_GAP, GapColumns, Thresholds, candidates, end_of, swap_of
from memfit.planning.autoswap.slack import relax
from memfit.planning.lifetimes import Gap
from memfit.progress import counted
from memfit.simulate import Simulator, load_bytes, planned_bytes, sum_of_spans
from memfit.units import format_bytes

POLICY = "memfit"
_FREE = 1e-6  # of the computation: shorter stalls do not count


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """A plan with its predicted effect."""

    plan: Plan
    timeline: Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A trace and a machine, ready to be searched at any budget."""

    trace: Trace
    machine: Machine
    found: list[Gap]
    columns: GapColumns
    simulator: Simulator = field(repr=False)

    @classmethod
    def of(cls, trace: Trace, machine: Machine, thresholds: Thresholds) -> Search:
        """Return the search over the gaps within `thresholds`."""
        found = candidates(trace, thresholds)
        return cls(trace, machine, found, GapColumns.of(trace, machine, found), Simulator(trace, machine))

    def run(self, budget_bytes: int, effort: float, seed: int, start: Sequence[int] = ()) -> _native.FoundSwaps:
        """Return the candidates to swap in `budget_bytes`; `start` is a choice to begin with."""
        return _native.search_swaps(
            duration_us=self.simulator.duration_us,
            load_bytes=self.simulator.load_bytes,
            size_bytes=self.columns.size_bytes,
            after=self.columns.after,
            before=self.columns.before,
            out_us=self.columns.out_us,
            in_us=self.columns.in_us,
            start=np.array(start, dtype=np.int64),
            budget_bytes=budget_bytes,
            both_factor=self.machine.both_factor,
            effort=effort,
            enough_us=_FREE * float(self.simulator.duration_us.sum()),
            seed=seed,
        )

    def swaps(self, found: _native.FoundSwaps) -> list[Swap]:
        """Return the swaps of a choice, in the order in which they leave; those that free no op are left out.

        Of swaps with the same ops the candidate that was listed first leaves and comes first, as in the search.
        """
        rows = zip(found.chosen.tolist(), found.free_by.tolist(), found.in_start.tolist(), strict=True)
        swaps = [swap_of(self.trace, self.found[c], free_by, in_start) for c, free_by, in_start in rows]
        return sorted(
            (swap for swap in swaps if swap.free_by < swap.in_start),
            key=lambda swap: (swap.out_after, swap.in_before),
        )

    def plan(self, budget_bytes: int, found: _native.FoundSwaps) -> SwapPlan:
        """Return the plan of a choice."""
        return self.timed(budget_bytes, self.swaps(found))

    def best(self, budget_bytes: int, found: _native.FoundSwaps) -> SwapPlan:
        """Return the fastest of the choice's plan and the published ones: these only where it waits."""
        plan = self.plan(budget_bytes, found)
        if plan.timeline.overhead <= _FREE:
            return plan
        return min((plan, *self.published(budget_bytes)), key=lambda one: one.timeline.iteration_us)

    def timed(self, budget_bytes: int, swaps: Sequence[Swap]) -> SwapPlan:
        """Return the plan of `swaps`, with the waits for copies out as late as the budget allows."""
        relaxed = tuple(relax(self.trace, swaps, budget_bytes))
        plan = Plan(self.trace.signature, len(self.trace.ops), POLICY, self.machine.name, budget_bytes, relaxed)
        return SwapPlan(plan, self.simulator.timeline(relaxed))

    def published(self, budget_bytes: int) -> list[SwapPlan]:
        """Return the published method's plans that fit: their order of copies in is another, at times a better one."""
        problem = ByScore.of(self.trace, self.machine, budget_bytes)
        choices = [problem.swaps(problem.scores(name)) for name in SCORES]
        fitting = [swaps for swaps in choices if planned_bytes(self.trace, swaps).max() <= budget_bytes]
        return [self.timed(budget_bytes, swaps) for swaps in fitting]


def plan_under_budget(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    effort: float = 2.0,
    seed: int = 0,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
) -> SwapPlan:
    """Return swaps that keep every op within `budget_bytes`, with the least added time that `effort` finds.

    `effort` is in seconds of counted work, about those of a slow core; the same question has the same answer.
    Raises BudgetError, with the smallest budget that swapping reaches, if this one cannot be met.
    """
    for tried in dict.fromkeys((thresholds, ANY_GAP)):
        search = Search.of(trace, machine, tried)
        found = search.run(budget_bytes, effort, seed)
        if found.is_feasible:
            return search.best(budget_bytes, found)
    raise too_small(trace, budget_bytes, found.least_bytes, found.worst_op)


def plan_at_no_cost(
    trace: Trace,
    machine: Machine,
    *,
    effort: float = 4.0,
    seed: int = 0,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
    precision: float = 0.001,
) -> SwapPlan:
    """Return the plan of the least budget found at which nothing waits, to `precision` of the peak; `effort` in s."""
    search = Search.of(trace, machine, thresholds)
    peak = int(load_bytes(trace).max())
    high, low = peak, search.run(0, 0, seed).least_bytes
    best = search.run(high, 0, seed)
    rounds = max(1, int(np.ceil(np.log2(max((high - low) / max(precision * peak, 1), 2)))))
    for round_effort in counted(repeat(effort / rounds)):
        if high - low <= max(precision * peak, 1):
            break
        middle = (low + high) // 2
        found = search.run(middle, round_effort, seed, best.chosen.tolist())
        if found.is_feasible and found.iteration_us <= found.compute_us * (1 + 2 * _FREE):
            best, high = found, middle
        else:
            low = middle
    return search.plan(high, best)


def smallest_budget(trace: Trace, gaps: Iterable[Gap] | None = None) -> tuple[int, int]:
    """Return the least budget (bytes) that swapping every gap reaches, at any cost, and the op that sets it.

    `gaps` are those that may be swapped, every one if None.
    """
    held = least_held(trace, gaps)
    op = int(held.argmax())
    return int(held[op]), op


def least_held(trace: Trace, gaps: Iterable[Gap] | None = None) -> Int64Array:
    """Return, for each op, the bytes (aligned, pinned ones included) in the arena when all that may be away is away.

    `gaps` are those that may be swapped, every one if None.
    """
    found = candidates(trace, ANY_GAP) if gaps is None else gaps
    spans = ((gap.after + 1, end_of(trace, gap), align_up(gap.size_bytes, trace.alignment)) for gap in found)
    return load_bytes(trace) - sum_of_spans(spans, len(trace.ops))


def too_small(trace: Trace, budget_bytes: int, required_bytes: int, worst_op: int) -> BudgetError:
    """Return the error that swapping cannot meet `budget_bytes`: op `worst_op` needs `required_bytes`."""
    op = trace.ops[worst_op]
    return BudgetError(
        f"a budget of {format_bytes(budget_bytes)} cannot be met by swapping",
        why=f"with all idle storages away, {op.name} at {op.source or 'an unknown line'} needs {required_bytes} bytes",
        remedy=f"use a budget of at least {format_bytes(required_bytes)} ({required_bytes} bytes)",
        required_bytes=required_bytes,
        op=op.name,
        source=op.source,
    )

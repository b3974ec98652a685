"""A joint plan: what is dropped and made again, and swaps for the rest, as near to the time bound as is found.

The program's solution is rounded; the trace with these remakings is planned by memfit's planner of swaps and timed by
the simulator. Where ops wait for copies, swaps whose storages are made again in less time than they are copied become
remakings, as long as that helps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from memfit.errors import BudgetError
from memfit.ir import Recompute, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.search import SwapPlan, plan_under_budget, too_small
from memfit.planning.joint.again import corrected
from memfit.planning.joint.program import Moves, TimeBound, time_bound
from memfit.planning.joint.rounding import Choice, Rounding
from memfit.planning.joint.transformed import Transformed, with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.joint.wishes import NO_WISHES, Wishes, without_swaps
from memfit.planning.lifetimes import Gap
from memfit.simulate import load_bytes

_THRESHOLDS = (0.5, 0.3)
_SLOWER = (1.1, 1.25)
"""The program's bytes are a fluid; whole storages on its link wait now and then, those on a slower one do not."""
_SEGMENTS = 500
"""Of the programs with slower links: these bound nothing."""
_ROUNDS = 6
_ENOUGH = 1e-3  # of the computation: a plan so near to the bound is not improved


@dataclass(frozen=True, slots=True)
class JointPlan:
    """A plan of both kinds.

    Attributes:
        choice: What is done in each gap.
        recomputes: The storages that are dropped and made again.
        transformed: The trace in which that is done.
        swaps: The swaps of that trace, and its timeline.
        compute_us: Microseconds of the original trace's ops.
        bound: The time bound of the budget.
    """

    choice: Choice
    recomputes: tuple[Recompute, ...]
    transformed: Transformed
    swaps: SwapPlan
    compute_us: float
    bound: TimeBound

    @property
    def added_us(self) -> float:
        """The microseconds that the plan adds: ops that run again, and waits for copies."""
        return self.swaps.timeline.iteration_us - self.compute_us

    @property
    def overhead(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return self.added_us / self.compute_us if self.compute_us else 0.0


def plan_jointly(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    moves: Moves = Moves.JOINT,
    effort: float = 2.0,
    wishes: Wishes = NO_WISHES,
    never: Collection[int] = (),
) -> JointPlan:
    """Return remakings and swaps that keep every op within `budget_bytes`, with the least added time that is found.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        moves: What plans may do; with `RECOMPUTE` none of them swaps.
        effort: The seconds of each search for swaps; there are up to a dozen.
        wishes: What is asked for of some storages.
        never: Storages that cannot be made again, nor on the way.

    Returns:
        The plan.

    Raises:
        BudgetError: No plan was found.
    """
    values = Values.of(corrected(trace), never)
    bounds = [time_bound(values.trace, machine, budget_bytes, moves=moves, wishes=wishes)]
    for factor in _SLOWER:
        slower = machine.slowed(factor, factor)
        bound = time_bound(values.trace, slower, budget_bytes, moves=moves, segments=_SEGMENTS, wishes=wishes)
        bounds.append(bound)
    search = _Search(values, machine, bounds, effort)
    best = search.start()
    for _ in range(_ROUNDS):
        if best.added_us - best.bound.added_us <= _ENOUGH * best.compute_us:
            break
        better = search.improved(best)
        if better is None:
            break
        best = better
    return best


class _Search:
    def __init__(self, values: Values, machine: Machine, bounds: list[TimeBound], effort: float) -> None:
        self.values, self.machine, self.effort = values, machine, effort
        self.bounds = bounds
        self.roundings = [Rounding(values, machine, each) for each in bounds]
        self.gaps = {(gap.storage, gap.after): gap for gap in self.roundings[0].shares}
        self.compute_us = sum(op.duration_us for op in values.trace.ops)
        self.seen: set[tuple[frozenset[Gap], frozenset[Gap]]] = set()

    def start(self) -> JointPlan:
        """Return the best of the rounded solutions, and of no remakings at all if none of them can be planned."""
        choices = [each.rounded(threshold) for each in self.roundings for threshold in _THRESHOLDS]
        plans = [plan for each in choices if (plan := self.plan(each)) is not None]
        if not plans:
            return self._plan(Choice(frozenset(), frozenset(), frozenset()))
        return min(plans, key=lambda plan: plan.added_us)

    def plan(self, choice: Choice) -> JointPlan | None:
        """Return the plan of `choice`; None if its swaps cannot keep to the budget, or it was tried before."""
        if (choice.remade, choice.passing) in self.seen:
            return None
        self.seen.add((choice.remade, choice.passing))
        try:
            return self._plan(choice)
        except BudgetError:
            return None

    def _plan(self, choice: Choice) -> JointPlan:
        recomputes = choice.arranged(self.values)
        made = with_recomputes(self.values, recomputes)
        if self.bounds[0].moves is Moves.RECOMPUTE:
            _require_fit(made.trace, self.bounds[0].budget_bytes)
        never_swapped = self.bounds[0].wishes.never_swapped
        free = without_swaps(made.trace, (s for s, was in enumerate(made.storage_of) if was in never_swapped))
        swaps = plan_under_budget(free, self.machine, self.bounds[0].budget_bytes, effort=self.effort)
        return JointPlan(choice, recomputes, made, swaps, self.compute_us, self.bounds[0])

    def improved(self, plan: JointPlan) -> JointPlan | None:
        """Return a faster plan: with remakings in place of the dearest swaps, or without the dearest remakings."""
        swapped, stall_us = self._swapped(plan), plan.swaps.timeline.stall_us
        cheap, dear = self._cheap(swapped), self._dear(plan)
        more = [(_until(cheap, part * stall_us), True) for part in (1.0, 0.5, 0.2)]
        fewer = [(set(dear[:count]), False) for count in (1, 4)]
        for chosen, is_more in more + fewer:
            tried = self._changed(plan, swapped, chosen, is_more=is_more) if chosen else None
            if tried is not None and tried.added_us < plan.added_us:
                return tried
        return None

    def _changed(self, plan: JointPlan, swapped: set[Gap], chosen: set[Gap], *, is_more: bool) -> JointPlan | None:
        remade = plan.choice.remade | chosen if is_more else plan.choice.remade - chosen
        may_swap = self.bounds[0].moves is not Moves.RECOMPUTE
        others = swapped - chosen if is_more or not may_swap else swapped | chosen
        return self.plan(self.roundings[0].settled(remade, others))

    def _swapped(self, plan: JointPlan) -> set[Gap]:
        """Return the gaps of the original trace that the plan's swaps lie in."""
        ops, storages = plan.transformed.op_of, plan.transformed.storage_of
        found = (self.gaps.get((storages[s.storage], ops[s.out_after])) for s in plan.swaps.plan.swaps)
        return {gap for gap in found if gap is not None} - plan.choice.remade

    def _cheap(self, swapped: set[Gap]) -> list[tuple[Gap, float]]:
        """Return swapped gaps that are made again in less time than their copies take, the cheapest first."""
        priced = [(us / copy_us, gap, copy_us) for gap, us, copy_us in self._prices(swapped) if us < copy_us]
        return [(gap, copy_us) for _, gap, copy_us in sorted(priced, key=lambda each: (each[0], each[1].storage))]

    def _dear(self, plan: JointPlan) -> list[Gap]:
        """Return remade gaps, those first that cost the most for what their copies would take."""
        priced = [(-us / copy_us, gap) for gap, us, copy_us in self._prices(plan.choice.remade)]
        return [gap for _, gap in sorted(priced, key=lambda each: (each[0], each[1].storage))]

    def _prices(self, gaps: Iterable[Gap]) -> list[tuple[Gap, float, float]]:
        rounding = self.roundings[0]
        return [(gap, us, rounding.copy_us[gap]) for gap in gaps if (us := rounding.us[gap]) is not None]


def _require_fit(trace: Trace, budget_bytes: int) -> None:
    """Raise BudgetError if `trace` needs swaps."""
    held = load_bytes(trace)
    if held.max() > budget_bytes:
        raise too_small(trace, budget_bytes, int(held.max()), int(held.argmax()))


def _until(priced: list[tuple[Gap, float]], us: float) -> set[Gap]:
    """Return the first gaps whose copies take `us` together."""
    chosen: set[Gap] = set()
    for gap, copies_us in priced:
        if us <= 0:
            break
        chosen.add(gap)
        us -= copies_us
    return chosen

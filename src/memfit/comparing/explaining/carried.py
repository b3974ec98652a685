"""A plan carried out on its trace and simulated, with every absence found in the original trace's gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from memfit.ir import Plan, Recompute, Timeline, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.judged import judged
from memfit.planning.joint.plan import JointPlan
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A plan and its effect.

    Attributes:
        values: The values of the original trace.
        machine: The links of the tier.
        plan: The plan; its swaps are of the trace with remakings.
        recomputes: The absences without a copy, in the original trace.
        made: The trace with remakings.
        timeline: Its timeline.
        place: For each original op its index in the trace with remakings.
        gaps: The gaps of each storage of the original trace, ascending; those without bytes have none.
        swaps: The numbers of the swaps in each gap.
        remade: The remakings in each gap.
        again_us: The microseconds of each remaking; an op that runs for several is divided among them.
    """

    values: Values
    machine: Machine
    plan: Plan
    recomputes: tuple[Recompute, ...]
    made: Transformed
    timeline: Timeline
    place: tuple[int, ...] = field(repr=False)
    gaps: dict[int, list[Gap]] = field(repr=False)
    swaps: dict[Gap, list[int]] = field(repr=False)
    remade: dict[Gap, list[Recompute]] = field(repr=False)
    again_us: dict[Recompute, float] = field(repr=False)

    @property
    def trace(self) -> Trace:
        """The original trace."""
        return self.values.trace

    @property
    def compute_us(self) -> float:
        """Microseconds of the original ops."""
        return sum(op.duration_us for op in self.trace.ops)

    @property
    def rerun_us(self) -> float:
        """Microseconds of the ops that run again."""
        ops = zip(self.made.trace.ops, self.made.runs_again, strict=True)
        return sum(op.duration_us for op, again in ops if again)

    @property
    def added(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return (self.timeline.iteration_us - self.compute_us) / self.compute_us if self.compute_us else 0.0

    def wait_us(self) -> dict[int, float]:
        """Return the microseconds that ops wait for each swap, by its number; those without waits are left out."""
        waits: dict[int, float] = defaultdict(float)
        for stall in self.timeline.stalls:
            waits[stall.swap] += stall.duration_us
        return dict(waits)

    def storage_of(self, swap: int) -> int:
        """Return the original storage of a swap."""
        return self.made.storage_of[self.plan.swaps[swap].storage]


def carry_out(trace: Trace, machine: Machine, plan: Plan) -> Carried:
    """Check a plan, carry it out on `trace`, and simulate it.

    Raises:
        InputError: The plan is for another trace.
        InvalidSwapsError: The swaps break a promise, or the bytes exceed the budget.
        InvalidRemakingsError: An op would read other values.
    """
    found = judged(trace, machine, plan)
    values = Values.of(corrected(trace))
    return carried_as(values, machine, found.swaps, plan.recomputes, found.made, found.timeline)


def carried_jointly(trace: Trace, machine: Machine, found: JointPlan) -> Carried:
    """Return a joint plan of `trace` as one that has been carried out."""
    values, swaps = Values.of(corrected(trace)), found.swaps
    return carried_as(values, machine, swaps.plan, found.recomputes, found.transformed, swaps.timeline)


def carried_as(
    values: Values, machine: Machine, plan: Plan, recomputes: tuple[Recompute, ...], made: Transformed,
    timeline: Timeline,
) -> Carried:  # fmt: skip
    """Return a plan that is known to keep its promises as one that has been carried out; as of `Carried`."""
    gaps: dict[int, list[Gap]] = defaultdict(list)
    for gap in sorted(candidates(values.trace, ANY_GAP), key=lambda gap: gap.after):
        gaps[gap.storage].append(gap)
    # Of a re-run it is the original op before it: what leaves after it leaves in the gap around it.
    last_op = [number - 1 for number in accumulate(not again for again in made.runs_again)]
    swaps: dict[Gap, list[int]] = defaultdict(list)
    for number, swap in enumerate(plan.swaps):
        found = _gap_at(gaps.get(made.storage_of[swap.storage], []), last_op[swap.out_after])
        if found is not None:
            swaps[found].append(number)
    remade: dict[Gap, list[Recompute]] = defaultdict(list)
    for one in recomputes:
        found = _gap_at(gaps.get(one.storage, []), one.after)
        if found is not None:
            remade[found].append(one)
    place = tuple(index for index, again in enumerate(made.runs_again) if not again)
    again_us = _again_us(values.trace, recomputes)
    return Carried(values, machine, plan, recomputes, made, timeline, place, gaps, swaps, remade, again_us)


def _gap_at(own: list[Gap], op: int) -> Gap | None:
    """Return the gap of a storage that begins at or before the end of `op` and ends later."""
    at = bisect_right(own, op, key=lambda gap: gap.after) - 1
    gap = own[at] if own else None  # before the first it is the last one, which may be cyclic
    if gap is None or (at < 0 and not gap.cyclic):
        return None
    return gap if op < gap.before or (at >= 0 and gap.cyclic) else None


def _again_us(trace: Trace, recomputes: tuple[Recompute, ...]) -> dict[Recompute, float]:
    wanted: dict[tuple[int, int], int] = defaultdict(int)
    for one in recomputes:
        for op in one.ops if one.returns else ():
            wanted[one.before, op] += 1
    return {
        one: sum(trace.ops[op].duration_us / wanted[one.before, op] for op in one.ops) if one.returns else 0.0
        for one in recomputes
    }

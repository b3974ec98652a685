"""A plan that was passed, made for another recording of the same iteration: found again in this one, or refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memfit.ir import Map, Plan, Recompute, Swap, Trace
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.as_plan import carried_out as made_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap, gaps
from memfit.running.engine import OpHash
from memfit.running.planned.carried_out import CarriedOut, carried_out
from memfit.running.planned.engine_plan import EFFORT, EnginePlan, place, swapping_by
from memfit.running.planned.recorded import Recorded
from memfit.simulate import Simulator
from memfit.units import format_bytes
from memfit.validate_joint import InvalidRemakingsError, check_joint


@dataclass(frozen=True)
class Untried:
    """A plan that was passed and has not been tried yet, or none was."""

    sentence = ""


@dataclass(frozen=True)
class Used:
    """A plan that was passed, and has been in force."""

    sentence = "used"


@dataclass(frozen=True)
class Refused:
    """A plan that was passed and is not used: `sentence` says why."""

    sentence: str


GivenPlan = Untried | Used | Refused
"""The fate of a plan that was passed."""


def given_engine_plan(
    recorded: Recorded, given: Plan, budget_bytes: int, machine: Machine, op_hash: OpHash
) -> EnginePlan | Refused:
    """Return the plan with the swaps and recomputes of `given`, or the reason why it cannot be used."""
    if given.op_count != len(recorded.trace.ops):
        ops = len(recorded.trace.ops)
        return Refused(f"it is for an iteration of {given.op_count} ops, and this one has {ops}")
    if _mapped(given.maps) != _mapped(recorded.maps):
        return Refused("it maps storages in other ops than those that do not fit here otherwise")
    iteration = same_recomputes(recorded, given)
    if isinstance(iteration, Refused):
        return iteration
    swaps = same_swaps(iteration.recorded.trace, given.swaps)
    if isinstance(swaps, Refused):
        return swaps
    # There is nothing to search: all the more for a packing that fits.
    placed = place(iteration.recorded, swaps, EFFORT)
    if budget_bytes and placed.needed_bytes > budget_bytes:
        needed, budget = format_bytes(placed.needed_bytes), format_bytes(budget_bytes)
        return Refused(f"with addresses it needs {needed}, and the budget is {budget}")
    simulator = Simulator(iteration.recorded.trace, machine)
    found = swapping_by(iteration, placed, given.policy, budget_bytes, simulator, op_hash)
    return replace(found, is_given=True)


def _mapped(maps: Sequence[Map]) -> list[tuple[int, int]]:
    return [(each.op, len(each.storages)) for each in maps]


def same_recomputes(recorded: Recorded, given: Plan) -> CarriedOut | Refused:
    """Return the iteration with the recomputes of `given` in it, or the reason why it cannot be."""
    if not given.recomputes:
        return CarriedOut(recorded)
    values = Values.of(corrected(recorded.trace))
    free: dict[int, list[Gap]] = defaultdict(list)  # by the op after which they begin
    for gap in gaps(recorded.trace):
        if not gap.cyclic:
            free[gap.after].append(gap)
    found = []
    for one in given.recomputes:
        alike = [gap for gap in free[one.after] if _is_made_by(values, gap, one)]
        if not alike:
            return Refused(f"no storage that is dropped after op {one.after} can be made again before op {one.before}")
        gap = next((gap for gap in alike if gap.storage == one.storage), alike[0])
        free[one.after].remove(gap)
        found.append(replace(one, storage=gap.storage))
    return _carried_out(recorded, replace(given, recomputes=tuple(found), signature=recorded.trace.signature))


def _is_made_by(values: Values, gap: Gap, one: Recompute) -> bool:
    """Return whether the storage is away for as long, and was written by an op that is to run again."""
    writer = values.values[values.before(gap.storage, gap.before)].writer
    is_like = one.returns or not gap.returns
    return is_like and gap.after < one.before <= gap.before and writer in one.ops


def _carried_out(recorded: Recorded, plan: Plan) -> CarriedOut | Refused:
    try:
        made = made_of(recorded.trace, plan)
    except InvalidRemakingsError as error:
        return Refused(f"its recomputes cannot be carried out: {error.why or error.what}")
    violation = check_joint(recorded.trace, made)
    if violation is not None:
        return Refused(f"its recomputes are wrong here: {violation.message}")
    return carried_out(recorded, made, plan.recomputes)


def same_swaps(trace: Trace, swaps: Sequence[Swap]) -> list[Swap] | Refused:
    """Return `swaps`, made for another recording of the same iteration, or the reason why they were not.

    A storage is found again by its gap: its size and the ops around it. Of several alike any may be taken.
    """
    free: dict[tuple[int, int, int, bool], list[int]] = {}
    for gap in gaps(trace):
        free.setdefault((gap.size_bytes, gap.after, gap.before, gap.returns), []).append(gap.storage)
    found = []
    for swap in swaps:
        alike = free.get((swap.size_bytes, swap.out_after, swap.in_before % len(trace.ops), swap.returns))
        if not alike:
            size = format_bytes(swap.size_bytes)
            return Refused(f"no storage of {size} is idle after op {swap.out_after} of this iteration")
        found.append(replace(swap, storage=alike.pop()))
    return found

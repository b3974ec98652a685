"""Plans that were chosen before: that of an earlier run, and the one in force by what is known now.

Nothing is searched for but the addresses of an earlier run's plan, which is checked first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memfit.files.kept_plan import KeptPlan
from memfit.ir import Plan, Transformed
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.as_plan import swaps_alone
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.running.engine import OpHash
from memfit.running.planned.carried_out import CarriedOut, carried_out
from memfit.running.planned.engine_plan import EFFORT, CompressedPlan, EnginePlan, place, swapping_by
from memfit.running.planned.recorded import Recorded
from memfit.simulate import Simulator
from memfit.validate_joint import require_known_recomputes, require_valid_joint
from memfit.validate_plan import require_valid_plan


def kept_plan(plan: CompressedPlan, key: str, never: Mapping[int, str]) -> KeptPlan | None:
    """Return what another run needs of a plan that is in force; None if nothing leaves by it."""
    made = plan.plan()
    if made.plan is None or plan.machine is None:
        return None
    return KeptPlan(key, made.plan, plan.machine, plan.is_joint, never)


def engine_plan_of_kept(
    recorded: Recorded, kept: KeptPlan, budget_bytes: int, machine: Machine, op_hash: OpHash
) -> EnginePlan | None:
    """Return the kept plan with addresses for this recording, foreseen on `machine`; None if it does not fit it.

    Its links are those that it was made for, so that it is known when others would do with another plan.
    """
    try:
        return _engine_plan(recorded, kept, budget_bytes, machine, op_hash)
    except Exception:  # a file may hold anything: whatever that does to what reads it, a plan is made as usual
        return None


def _engine_plan(
    recorded: Recorded, kept: KeptPlan, budget_bytes: int, machine: Machine, op_hash: OpHash
) -> EnginePlan | None:
    if kept.plan.maps != recorded.maps:
        return None
    iteration = _checked(recorded, kept.plan)
    if any(storage >= len(recorded.trace.storages) for storage in kept.never):
        return None
    placed = place(iteration.recorded, kept.plan.swaps, EFFORT)
    if placed.needed_bytes > budget_bytes:
        return None
    simulator = Simulator(iteration.recorded.trace, machine)
    plan = kept.plan
    found = swapping_by(iteration, placed, plan.policy, plan.budget_bytes, simulator, op_hash)
    return replace(found, machine=kept.machine, is_joint=kept.is_joint)


def foreseen_anew(recorded: Recorded, made: EnginePlan, machine: Machine) -> EnginePlan:
    """Return the plan that was `made` for these iterations, as it is foreseen with their times, and on `machine`."""
    if made.plan is None:
        return made
    iteration = _carried_out(recorded, made.plan)
    predicted = Simulator(iteration.recorded.trace, machine).timeline(made.plan.swaps)
    compute_us = sum(iteration.own_us()) - recorded.mapped_us
    return replace(made, predicted=predicted, machine=machine, compute_us=compute_us)


def _checked(recorded: Recorded, plan: Plan) -> CarriedOut:
    """Return the iteration in which the plan's recomputes are carried out; raises if a promise is broken."""
    trace = recorded.trace
    if _moves_only(recorded, plan):
        require_valid_plan(trace, plan)
    else:
        require_known_recomputes(trace, plan.recomputes)
        plain = corrected(trace)
        made = with_recomputes(Values.of(plain), plan.recomputes)
        require_valid_joint(plain, made)
        require_valid_plan(made.trace, replace(swaps_alone(made, plan), signature=plan.signature))
    return _carried_out(recorded, plan)


def _moves_only(recorded: Recorded, plan: Plan) -> bool:
    return plan.signature == recorded.trace.signature and not plan.recomputes


def _carried_out(recorded: Recorded, plan: Plan) -> CarriedOut:
    if _moves_only(recorded, plan):
        return CarriedOut(recorded)
    return carried_out(recorded, made_by(recorded, plan), plan.recomputes)


def made_by(recorded: Recorded, plan: Plan) -> Transformed:
    """Return the iteration in which the plan's recomputes are carried out, which its swaps are of."""
    if _moves_only(recorded, plan):
        return Transformed.unchanged(recorded.trace)
    values = Values.of(corrected(recorded.trace), recorded.again_us or None)
    return with_recomputes(values, plan.recomputes)

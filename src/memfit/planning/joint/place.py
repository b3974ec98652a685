"""Joint plans that fit the budget once everything that stays has an address."""

from __future__ import annotations

from dataclasses import replace

from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap.place import no_addresses, with_footprint
from memfit.planning.fit import Fitted, Infeasible, fit_within
from memfit.planning.joint.plan import JointPlan, plan_jointly
from memfit.planning.joint.program import Moves
from memfit.planning.joint.wishes import NO_WISHES, Wishes
from memfit.simulate import planned_bytes

_ROUNDS = 5


def plan_jointly_with_addresses(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    moves: Moves = Moves.JOINT,
    effort: float = 2.0,
    wishes: Wishes = NO_WISHES,
) -> JointPlan:
    """Return a joint plan that fits in `budget_bytes` with addresses: asked again with less where these need more.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        moves: What the plan may do.
        effort: The seconds of each search for swaps, and of each search for addresses.
        wishes: What is asked for of some storages.

    Returns:
        The plan, with its footprint; its bound is that of `budget_bytes`.

    Raises:
        BudgetError: No plan was found, or no round's footprint fits.
    """
    tried: list[JointPlan] = []

    def attempt(limit_bytes: int) -> Fitted[JointPlan] | Infeasible | None:
        try:
            found = plan_jointly(trace, machine, limit_bytes, moves=moves, effort=effort, wishes=wishes)
        except BudgetError as error:
            if not tried:
                raise  # it names the budget, which no addresses have lowered yet
            return None if error.required_bytes is None else Infeasible(error.required_bytes)
        placed = with_footprint(found.transformed.trace, found.swaps.plan, effort=effort)
        swaps = replace(found.swaps, plan=replace(placed, budget_bytes=budget_bytes))
        tried.append(replace(found, swaps=swaps, bind=tried[0].bind if tried else found.bind))
        return Fitted(_needed_bytes(tried[-1], limit_bytes), tried[-1])

    fitted = fit_within(budget_bytes, attempt, rounds=_ROUNDS)
    if fitted is None:
        raise no_addresses(budget_bytes, min(each.swaps.plan.footprint_bytes for each in tried))
    return fitted


def _needed_bytes(found: JointPlan, limit_bytes: int) -> int:
    """Return the footprint, and if that is too much also what the plan leaves of the limit.

    A plan of whole storages may leave a lot, and would be found again below a limit that is lowered by less.
    """
    plan = found.swaps.plan
    if plan.footprint_bytes <= plan.budget_bytes:
        return plan.footprint_bytes
    return plan.footprint_bytes + limit_bytes - int(planned_bytes(found.transformed.trace, plan.swaps).max())

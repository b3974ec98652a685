"""Joint plans that fit the budget once everything that stays has an address."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

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
    never: Collection[int] = (),
) -> JointPlan:
    """Return a joint plan that fits in `budget_bytes` with addresses: asked again with less where these need more.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        moves: What the plan may do.
        effort: The seconds of each search for swaps, and of each search for addresses.
        wishes: What is asked for of some storages.
        never: Storages that cannot be made again, nor on the way.

    Returns:
        The plan, with its footprint; its bound is that of `budget_bytes`.

    Raises:
        BudgetError: No plan was found, or no round's footprint fits.
    """
    asked = _Asked(trace, machine, budget_bytes, effort, wishes, never)
    found = [asked.fitted(moves)]
    if moves is Moves.JOINT and len(asked.tried) > 1:
        # With less memory than there is the search may find nothing that is as good as swaps alone in all of it.
        found.append(asked.fitted(Moves.SWAP))
    plans = [plan for plan in found if plan is not None]
    if not plans:
        raise no_addresses(budget_bytes, min(each.swaps.plan.footprint_bytes for each in asked.tried))
    return min(plans, key=lambda plan: plan.added_us)


@dataclass(frozen=True)
class _Asked:
    """What is asked for, and the plans with addresses that were tried, whether or not they fit."""

    trace: Trace
    machine: Machine
    budget_bytes: int
    effort: float
    wishes: Wishes
    never: Collection[int]
    tried: list[JointPlan] = field(default_factory=list)

    def fitted(self, moves: Moves) -> JointPlan | None:
        """Return the first plan that fits; None if no round's does. Raises BudgetError if none was found at all."""
        return fit_within(self.budget_bytes, partial(self._attempt, moves), rounds=_ROUNDS)

    def _attempt(self, moves: Moves, limit_bytes: int) -> Fitted[JointPlan] | Infeasible | None:
        try:
            found = plan_jointly(
                self.trace,
                self.machine,
                limit_bytes,
                moves=moves,
                effort=self.effort,
                never=self.never,
                wishes=self.wishes,
            )
        except BudgetError as error:
            if not self.tried:
                raise  # it names the budget, which no addresses have lowered yet
            return None if error.required_bytes is None else Infeasible(error.required_bytes)
        placed = with_footprint(found.transformed.trace, found.swaps.plan, effort=self.effort)
        swaps = replace(found.swaps, plan=replace(placed, budget_bytes=self.budget_bytes))
        self.tried.append(replace(found, swaps=swaps, bind=self.tried[0].bind if self.tried else found.bind))
        return Fitted(_needed_bytes(self.tried[-1], limit_bytes), self.tried[-1])


def _needed_bytes(found: JointPlan, limit_bytes: int) -> int:
    """Return the footprint, and if that is too much also what the plan leaves of the limit.

    A plan of whole storages may leave a lot, and would be found again below a limit that is lowered by less.
    """
    plan = found.swaps.plan
    if plan.footprint_bytes <= plan.budget_bytes:
        return plan.footprint_bytes
    return plan.footprint_bytes + limit_bytes - int(planned_bytes(found.transformed.trace, plan.swaps).max())

"""The interface of policies that recompute, and the traces that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from memfit.baselines.policies.policy import plan_of_swaps, plan_that_waits_for_room
from memfit.ir import Plan, Recompute, Swap, Trace
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.transformed import Transformed, with_recomputes
from memfit.planning.joint.values import Values


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """Remakings and swaps.

    Attributes:
        recomputes: The storages that are dropped and made again, in the trace that was given.
        plan: The swaps, numbered on the trace in which that is done (`carried_out`).
    """

    recomputes: tuple[Recompute, ...]
    plan: Plan


class RecomputePolicy(Protocol):
    """Plans the remakings, and perhaps the swaps, of one iteration."""

    def __call__(self, trace: Trace, machine: Machine, budget_bytes: int) -> MixedPlan:
        """Return a plan within `budget_bytes`; raises BudgetError if the policy finds none."""


def carried_out(trace: Trace, plan: MixedPlan) -> Transformed:
    """Return `trace` with the remakings of `plan`, which its swaps are for."""
    return with_recomputes(Values.of(corrected(trace)), plan.recomputes)


def mixed(
    name: str, machine: Machine, budget_bytes: int, recomputes: Iterable[Recompute], made: Trace, swaps: Iterable[Swap]
) -> MixedPlan:
    """Return `recomputes` with `swaps` on the trace `made` of them; raises BudgetError if these do not fit."""
    return MixedPlan(tuple(recomputes), plan_of_swaps(name, made, machine, budget_bytes, swaps))


def mixed_that_waits_for_room(
    name: str, machine: Machine, budget_bytes: int, recomputes: Iterable[Recompute], made: Trace, swaps: Iterable[Swap]
) -> MixedPlan:
    """Return the same with each copy out waited for only where its room is needed."""
    return MixedPlan(tuple(recomputes), plan_that_waits_for_room(name, made, machine, budget_bytes, swaps))

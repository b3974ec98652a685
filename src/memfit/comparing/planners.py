"""Every planner by its name on the command line: memfit's own, by what it may do, and other systems' policies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memfit.baselines.policies import OPTIONAL, POLICIES, Policy
from memfit.baselines.recomputing import RECOMPUTE_POLICIES, SMALL_GRAPHS
from memfit.comparing.choice import choose
from memfit.ir import Plan, Trace
from memfit.machine import Machine
from memfit.planning.autoswap import plan_under_budget, plan_with_addresses, with_footprint
from memfit.planning.joint.as_plan import as_plan, carried_out, swaps_alone
from memfit.planning.joint.place import plan_jointly_with_addresses
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import Moves, time_bound

OURS = {"memfit": Moves.JOINT, "swap": Moves.SWAP, "recompute": Moves.RECOMPUTE}
"""memfit's planner: keeping, swapping and recomputing; without recomputing; and without swapping."""

OTHERS: dict[str, Policy] = {name: policy for name, policy in POLICIES.items() if name not in OURS}
"""The other systems' policies that `all` selects: those that swap."""

NAMED: dict[str, Policy] = {**OPTIONAL, **RECOMPUTE_POLICIES, **SMALL_GRAPHS}
"""Those that have to be named."""

_EFFORT = 0.5
"""Seconds of each search of memfit's planner, where many plans are compared."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, and the microseconds below which no plan of its kind is; None for other systems' policies."""

    plan: Plan
    bound_us: float | None = None


def choose_planners(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for an unknown one."""
    return choose(text, "policy", all_=(*OTHERS, *OURS), more=tuple(NAMED))


def find_planner(name: str) -> Policy:
    """Return the planner `name` as a function from a trace, a machine and a budget; raises KeyError for an unknown."""
    if name not in OURS:
        return OTHERS[name] if name in OTHERS else NAMED[name]
    return lambda trace, machine, budget_bytes: _ours(name, trace, machine, budget_bytes, _EFFORT, addresses=False).plan


def plan_by(name: str, trace: Trace, machine: Machine, budget_bytes: int, *, effort: float, addresses: bool) -> Found:
    """Plan by the planner of one name.

    Arguments:
        name: The name.
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        effort: The seconds of each search, of memfit's planner.
        addresses: Whether to find addresses too; memfit's planner plans so that they fit the budget.

    Returns:
        The plan.

    Raises:
        BudgetError: No plan was found.
        KeyError: There is no such planner.
    """
    if name in OURS:
        return _ours(name, trace, machine, budget_bytes, effort, addresses=addresses)
    plan = find_planner(name)(trace, machine, budget_bytes)
    return Found(footprinted(trace, plan) if addresses else plan)


def footprinted(trace: Trace, plan: Plan) -> Plan:
    """Return `plan` with the bytes it needs once everything that stays has an address."""
    made = carried_out(trace, plan)
    placed = with_footprint(made.trace, swaps_alone(made, plan))
    return replace(plan, footprint_bytes=placed.footprint_bytes)


def _ours(name: str, trace: Trace, machine: Machine, budget_bytes: int, effort: float, *, addresses: bool) -> Found:
    moves = OURS[name]
    if moves is Moves.SWAP:
        planner = plan_with_addresses if addresses else plan_under_budget
        swaps = planner(trace, machine, budget_bytes, effort=effort).plan
        bound = time_bound(trace, machine, budget_bytes, moves=moves, clean_copies=False)
        return Found(replace(swaps, policy=name), bound.added_us)
    joint = plan_jointly_with_addresses if addresses else plan_jointly
    found = joint(trace, machine, budget_bytes, moves=moves, effort=effort)
    return Found(replace(as_plan(trace, found), policy=name), found.bound.added_us)

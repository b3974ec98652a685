"""Every planner by its name on the command line: memfit's own, by what it may do, and other systems' policies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memfit.baselines.policies import OPTIONAL, POLICIES, Policy
from memfit.baselines.recomputing import RECOMPUTE_POLICIES, SMALL_GRAPHS
from memfit.comparing.choice import choose
from memfit.errors import BudgetError, UsageError
from memfit.ir import Plan, Trace
from memfit.machine import Machine
from memfit.planning.autoswap import plan_under_budget, plan_with_addresses, smallest_budget, with_footprint
from memfit.planning.autoswap.search import least_held
from memfit.planning.joint.as_plan import as_plan, carried_out, swaps_alone
from memfit.planning.joint.place import plan_jointly_with_addresses
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import Moves, time_bound
from memfit.planning.joint.wishes import NO_WISHES, Wishes, not_found, require_possible, without_swaps
from memfit.planning.paging.choice import SHARE_FOR_HOLES, Frames, choose_maps
from memfit.planning.paging.mapped import not_made_again, with_maps

OURS = {"memfit": Moves.JOINT, "swap": Moves.SWAP, "recompute": Moves.RECOMPUTE}
"""memfit's planner: keeping, swapping and recomputing; without recomputing; and without swapping."""

OTHERS: dict[str, Policy] = {name: policy for name, policy in POLICIES.items() if name not in OURS}
"""The other systems' policies that `all` selects: those that swap."""

NAMED: dict[str, Policy] = {**OPTIONAL, **RECOMPUTE_POLICIES, **SMALL_GRAPHS}
"""Those that have to be named."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, and the microseconds below which no plan of its kind is; None for other systems' policies."""

    plan: Plan
    bound_us: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A plan that is asked for.

    Attributes:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        effort: The seconds of each search, of memfit's planner.
        addresses: Whether to find addresses too; memfit's planner plans so that they fit the budget.
        wishes: What is asked for of some storages; memfit's planner alone can be asked.
        maps: Whether ops that do not fit the budget may use storages where they wait; memfit's planner alone plans so.
        never: The storages that cannot be made again.
    """

    trace: Trace
    machine: Machine
    budget_bytes: int
    effort: float = 0.5
    addresses: bool = False
    wishes: Wishes = NO_WISHES
    maps: bool = False
    never: frozenset[int] = frozenset()


def choose_planners(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for an unknown one."""
    return choose(text, "policy", all_=(*OTHERS, *OURS), more=tuple(NAMED))


def find_planner(name: str) -> Policy:
    """Return the planner `name` as a function from a trace, a machine and a budget; raises KeyError for an unknown."""
    if name not in OURS:
        return OTHERS[name] if name in OTHERS else NAMED[name]
    return lambda trace, machine, budget_bytes: plan_by(name, Asked(trace, machine, budget_bytes)).plan


def plan_by(name: str, asked: Asked) -> Found:
    """Plan by the planner of one name.

    Arguments:
        name: The name.
        asked: The plan that is asked for.

    Returns:
        The plan.

    Raises:
        BudgetError: No plan was found.
        KeyError: There is no such planner.
        UsageError: Another system's policy is asked for something.
    """
    if name in OURS:
        return _mapping(name, asked) if asked.maps else _wished(name, asked)
    if asked.wishes:
        raise UsageError(
            f"the policy {name} takes no wishes",
            why="--keep, --swap and --recompute are for memfit's own planner",
            remedy=f"--policy {' or '.join(OURS)}",
        )
    plan = find_planner(name)(asked.trace, asked.machine, asked.budget_bytes)
    return Found(footprinted(asked.trace, plan) if asked.addresses else plan)


def footprinted(trace: Trace, plan: Plan) -> Plan:
    """Return `plan` with the bytes it needs once everything that stays has an address."""
    made = carried_out(trace, plan)
    placed = with_footprint(made.trace, swaps_alone(made, plan))
    return replace(plan, footprint_bytes=placed.footprint_bytes)


def _mapping(name: str, asked: Asked) -> Found:
    """Return the plan of memfit's planner `name` in which as little is mapped as makes every op fit."""
    room = asked.budget_bytes
    if int(least_held(asked.trace).max()) > room and asked.addresses:
        room -= room // SHARE_FOR_HOLES
    maps = choose_maps(asked.trace, room, _frames(asked))
    if not maps:
        return _wished(name, asked)
    trace, never = with_maps(asked.trace, maps, asked.machine), not_made_again(asked.trace, maps)
    found = _wished(name, replace(asked, trace=trace, never=never))
    return Found(replace(found.plan, maps=maps))


def _frames(asked: Asked) -> Frames:
    faults = asked.machine.faults
    if faults is not None and not faults.chunk_bytes:
        return Frames.none()
    return Frames.within(asked.budget_bytes, asked.trace.alignment)


def _wished(name: str, asked: Asked) -> Found:
    """Return the plan of memfit's planner `name`; errors say so where wishes are their cause, or may be."""
    if asked.wishes:
        require_possible(asked.trace, asked.budget_bytes, asked.wishes)
    try:
        found = _swapping(asked) if OURS[name] is Moves.SWAP else _joint(OURS[name], asked)
    except BudgetError as error:
        if not asked.wishes or asked.budget_bytes < smallest_budget(asked.trace)[0]:
            raise
        raise not_found(asked.budget_bytes, error) from error
    return replace(found, plan=replace(found.plan, policy=name))


def _swapping(asked: Asked) -> Found:
    planner = plan_with_addresses if asked.addresses else plan_under_budget
    free = without_swaps(asked.trace, asked.wishes.never_swapped)
    plan = planner(free, asked.machine, asked.budget_bytes, effort=asked.effort).plan
    bound = time_bound(
        asked.trace, asked.machine, asked.budget_bytes, moves=Moves.SWAP, clean_copies=False, wishes=asked.wishes
    )
    return Found(plan, bound.added_us)


def _joint(moves: Moves, asked: Asked) -> Found:
    planner = plan_jointly_with_addresses if asked.addresses else plan_jointly
    found = planner(
        asked.trace,
        asked.machine,
        asked.budget_bytes,
        moves=moves,
        effort=asked.effort,
        never=asked.never,
        wishes=asked.wishes,
    )
    return Found(as_plan(asked.trace, found), found.bound.added_us)

"""The way from a recorded iteration to the engine's plan for it: addresses and swaps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memfit.errors import BudgetError
from memfit.ir import Plan, Swap, Timeline, Trace, align_up
from memfit.machine import Machine
from memfit.planning.addresses import AddressPlan, plan_addresses, takes_of
from memfit.planning.autoswap import ANY_GAP
from memfit.planning.autoswap.search import POLICY, Search
from memfit.planning.fit import Fitted, Infeasible, fit_within
from memfit.planning.handing_over import in_effect
from memfit.planning.joint.plan import Cancelled, JointPlan, plan_jointly, soon_planner
from memfit.planning.joint.program import Moves
from memfit.planning.joint.wishes import Wishes
from memfit.planning.lifetimes import largest_small
from memfit.running.engine import OpHash, RemakeTableColumns, SwapTableColumns
from memfit.running.planned.carried_out import CarriedOut, carried_out
from memfit.running.planned.columns import remake_columns, swap_columns
from memfit.running.planned.recorded import CompressedIterations, Recorded
from memfit.simulate import Simulator, load_bytes
from memfit.tracing.compressed import Compressed
from memfit.units import format_bytes

EFFORT = 0.5  # seconds at most, of the packer and of the search for swaps
_LEAST_EFFORT = 0.05
_SHARE = 10  # as many iterations is a search worth
_ROUNDS = 8
_ENOUGH = 0.005  # of the computation: where swaps add no more, nothing is made again
_BETTER = 1e-3  # of the computation: a plan that gains less is not put in another's place, which has to be tried first
_ROOM_BYTES = 1 << 16  # kept free of plans that swap, or a 50th of the budget


@dataclass(frozen=True)
class EnginePlan:
    """The arguments of `engine.use_plan`, and the plan they were made from: three fields are None without swaps.

    `resident` are the blocks that the plan leaves below its zone.
    """

    addresses: AddressPlan
    swaps: SwapTableColumns
    remakes: RemakeTableColumns
    resident: list[int]
    plan: Plan | None = None
    predicted: Timeline | None = None
    machine: Machine | None = None
    compute_us: float = 0.0  # of the program's ops
    is_given: bool = False
    is_joint: bool = False  # swapping and making again were weighed against each other
    dropped: tuple[int, ...] = ()
    """The storage of the recorded iteration that each drop is of."""
    givers: Mapping[int, int] = field(default_factory=dict)
    """By op, the storage of the recorded iteration that gives its place to an output."""

    @property
    def added_us(self) -> float:
        """The microseconds that the plan is foreseen to add: waits, ops that run again, and what is mapped."""
        return self.predicted.iteration_us - self.compute_us if self.predicted else 0.0

    def describe(self) -> str:
        """Return the number and bytes of the swaps and drops, in a few words."""
        parts = []
        if self.plan is not None and self.plan.swaps:
            moved = sum(swap.size_bytes for swap in self.plan.swaps)
            parts.append(f"{len(self.plan.swaps)} swaps of {format_bytes(moved)} in all, copied beside the ops")
        gone = sum(not one.returns for one in self.plan.recomputes) if self.plan is not None else 0
        if len(self.dropped) > gone:
            parts.append(f"{len(self.dropped) - gone} storages dropped and made again")
        if gone:
            parts.append(f"{gone} storages dropped for good")
        if self.plan is not None and self.plan.maps:
            parts.append(f"{len(self.plan.maps)} ops use what they need where it waits")
        return "; ".join(parts) or "nothing has to leave"


@dataclass(frozen=True)
class CompressedPlan:
    """An EnginePlan that is kept until it is to be used, with the figures that are asked for meanwhile."""

    compressed: Compressed[EnginePlan]
    iterations: CompressedIterations
    machine: Machine | None
    is_given: bool
    compute_us: float | None  # foreseen, of ops that run again too; None where nothing leaves
    stall_us: float
    overhead: float = 0.0  # of the program's ops
    is_joint: bool = False
    dropped: tuple[int, ...] = ()
    givers: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: EnginePlan, iterations: CompressedIterations) -> CompressedPlan:
        """Compress `plan`, which was made for `iterations`."""
        compute_us, stall_us = (plan.predicted.compute_us, plan.predicted.stall_us) if plan.predicted else (None, 0.0)
        made = (plan.machine, plan.is_given, compute_us, stall_us, _overhead(plan), plan.is_joint, plan.dropped)
        return cls(Compressed(plan), iterations, *made, plan.givers)

    @property
    def may_be_improved(self) -> bool:
        """Whether ops wait for swaps, and it has not been looked whether storages are better made again."""
        return not self.is_joint and not self.is_given and self.overhead > _ENOUGH

    @property
    def foreseen_us(self) -> float | None:
        """The microseconds of an iteration; None where nothing leaves."""
        return None if self.compute_us is None else self.compute_us + self.stall_us

    def improves(self, other: CompressedPlan | None, never: Collection[int] = ()) -> bool:
        """Return whether it is foreseen to be faster than `other`, by as much as a first iteration by it is worth.

        Both are foreseen with the same links and times. It is better, too, if `other` counts on what can `never` be
        made again.
        """
        if other is None or {*other.dropped, *other.givers.values()} & set(never):
            return True
        return self.overhead < other.overhead - _BETTER

    def plan(self) -> EnginePlan:
        """Return the plan."""
        return self.compressed.value()

    def trace(self) -> Trace | None:
        """Return the iteration that it is for."""
        recorded = self.iterations.recorded()
        return None if recorded is None else recorded.trace


def make_engine_plan(
    recorded: Recorded,
    budget_bytes: int,
    machine: Machine,
    op_hash: OpHash,
    stopped: Callable[[], bool] = lambda: False,
    moves: Moves = Moves.SWAP,
    never: Collection[int] = (),
    *,
    none_soon: Callable[[], None] | None = None,
) -> EnginePlan | None:
    """Return a plan within `budget_bytes` (0: no limit), or None when none was found.

    It gives up when `stopped()`. Nothing leaves if everything fits. Otherwise swaps are chosen, then addresses; where
    these leave gaps that do not fit, swaps are chosen again for as much less (SmartPool under AutoSwap, arXiv
    1903.06631). Where ops would wait for swaps, a joint plan is made too, in which no storage of `never` is made again,
    and the faster one is taken. `moves` says which of these there are. If training waits for it, a joint plan is made
    at once, in a second instead of ten, or else one that only swaps; where there is neither, `none_soon` is called, and
    the search goes on.
    """
    seconds = sum(op.duration_us for op in recorded.trace.ops) / 1e6
    effort = min(EFFORT, max(_LEAST_EFFORT, _SHARE * seconds))
    may_fit = not budget_bytes or load_bytes(recorded.trace).max() <= budget_bytes
    whole = place(recorded, (), effort) if may_fit else None
    if whole is not None and (not budget_bytes or whole.needed_bytes <= budget_bytes):
        if not recorded.maps:
            return _engine_plan(CarriedOut(recorded), whole, op_hash)
        simulator = Simulator(recorded.trace, machine)
        return swapping_by(CarriedOut(recorded), whole, POLICY, budget_bytes, simulator, op_hash)
    budget_bytes = within(budget_bytes)
    soon = none_soon is not None and moves is Moves.JOINT
    if soon:
        joint = _joint_plan(recorded, budget_bytes, machine, op_hash, stopped, _LEAST_EFFORT, moves, never, soon=True)
        if joint is not None:
            return joint
    swapping = None
    if moves is not Moves.RECOMPUTE:
        swapping = _swapping_plan(recorded, budget_bytes, machine, op_hash, stopped, effort)
    if moves is Moves.SWAP or stopped() or (swapping is not None and (soon or _overhead(swapping) <= _ENOUGH)):
        return swapping
    if none_soon is not None:
        none_soon()
    joint = _joint_plan(recorded, budget_bytes, machine, op_hash, stopped, effort, moves, never)
    found = [replace(plan, is_joint=True) for plan in (swapping, joint) if plan is not None]
    return min(found, key=_overhead, default=None)


def within(budget_bytes: int) -> int:
    """Return what plans that move anything may use of a budget (bytes)."""
    return budget_bytes - min(_ROOM_BYTES, budget_bytes // 50)


def _overhead(plan: EnginePlan) -> float:
    """Return what the plan adds to the ops of the iteration, as a part of them."""
    return plan.added_us / plan.compute_us if plan.compute_us else 0.0


def _swapping_plan(
    recorded: Recorded,
    budget_bytes: int,
    machine: Machine,
    op_hash: OpHash,
    stopped: Callable[[], bool],
    effort: float,
) -> EnginePlan | None:
    search = Search.of(recorded.trace, machine, ANY_GAP)
    start: tuple[int, ...] = ()

    def attempt(limit_bytes: int) -> Fitted[Placed] | Infeasible | None:
        nonlocal start
        found = search.run(limit_bytes, effort, 0, start)
        if stopped():
            return None
        start = tuple(found.chosen.tolist()) if found.is_feasible else ()
        if not found.is_feasible:
            return Infeasible(found.least_bytes)
        placed = place(recorded, search.swaps(found), effort)
        return Fitted(placed.needed_bytes, placed)

    placed = fit_within(budget_bytes, attempt, rounds=_ROUNDS)
    if placed is None:
        return None
    return swapping_by(CarriedOut(recorded), placed, POLICY, budget_bytes, search.simulator, op_hash)


def _joint_plan(
    recorded: Recorded,
    budget_bytes: int,
    machine: Machine,
    op_hash: OpHash,
    stopped: Callable[[], bool],
    effort: float,
    moves: Moves,
    never: Collection[int],
    *,
    soon: bool = False,
) -> EnginePlan | None:
    storages, small = recorded.trace.storages, largest_small(budget_bytes)
    # They lie on the shelf, and leave it while no op runs: no drop right after an op takes them away.
    wishes = Wishes(swap=frozenset(i for i, storage in enumerate(storages) if storage.size_bytes <= small))
    about: dict[str, Any] = {"again_us": recorded.again_us, "wishes": wishes, "never": never, "stopped": stopped}
    planner: Callable[[int], JointPlan] = (
        soon_planner(recorded.trace, machine, **about)
        if soon
        else partial(plan_jointly, recorded.trace, machine, moves=moves, effort=effort, **about)
    )

    def attempt(limit_bytes: int) -> Fitted[tuple[CarriedOut, Placed]] | Infeasible | None:
        if stopped():
            return None
        try:
            plan = planner(limit_bytes)
        except Cancelled:
            return None
        except BudgetError as error:
            return Infeasible(error.required_bytes or budget_bytes + 1)
        iteration = carried_out(recorded, plan.transformed, plan.recomputes)
        placed = place(iteration.recorded, plan.swaps.plan.swaps, effort)
        return Fitted(placed.needed_bytes, (iteration, placed))

    made = fit_within(budget_bytes, attempt, rounds=_ROUNDS)
    if made is None:
        return None
    iteration, placed = made
    simulator = Simulator(iteration.recorded.trace, machine)
    return swapping_by(iteration, placed, POLICY, budget_bytes, simulator, op_hash)


def swapping_by(
    iteration: CarriedOut,
    placed: Placed,
    policy: str,
    budget_bytes: int,
    simulator: Simulator,
    op_hash: OpHash,
) -> EnginePlan:
    """Return the engine's plan for `iteration` with what was `placed`, and what it is foreseen to do."""
    trace = iteration.recorded.trace
    own_us = iteration.own_us()
    plan = Plan(trace.signature, len(own_us), policy, simulator.machine.name, budget_bytes, tuple(placed.swaps),
                footprint_bytes=placed.needed_bytes, recomputes=iteration.recomputes, maps=iteration.maps)  # fmt: skip
    predicted = simulator.timeline(placed.swaps)
    whole = _engine_plan(iteration, placed, op_hash)
    compute_us = sum(own_us) - iteration.recorded.mapped_us
    return replace(whole, plan=plan, predicted=predicted, machine=simulator.machine, compute_us=compute_us)


@dataclass(frozen=True)
class Placed:
    """Swaps, and the addresses of everything that comes and goes; `resident` storages lie below."""

    swaps: Sequence[Swap]
    addresses: AddressPlan
    resident: list[int]
    needed_bytes: int


def place(recorded: Recorded, swaps: Sequence[Swap], effort: float) -> Placed:
    """Find addresses for everything that takes bytes in an iteration with `swaps`; `effort` in seconds."""
    trace = recorded.trace
    givers = {recorded.blocks[taker]: recorded.blocks[giver] for taker, giver in in_effect(trace).items()}
    takes = takes_of(recorded.iterations, swaps, recorded.blocks, givers, recorded.absent_blocks)
    resident = _resident(trace, swaps)
    pinned = [s for s, one in enumerate(trace.storages) if trace.recurs(one) and one.pinned_from is not None]
    there = [*resident, *pinned]
    below = sum(align_up(trace.storages[s].size_bytes, trace.alignment) for s in there) + trace.pinned_bytes
    # Storages that pile up iteration by iteration (losses in a list) have no address in the plan, but need some room.
    piling_up = takes.size[(takes.upper < 0) & ~takes.mapped].tolist()
    beside = sum(align_up(size, trace.alignment) for size in piling_up)
    if recorded.around is None:
        addresses = plan_addresses(takes, alignment=trace.alignment, effort=effort)
        return Placed(swaps, addresses, resident, below + addresses.zone_bytes + beside)
    stays = {recorded.blocks[s] for s in there}  # and, among the pinned bytes, what is no storage of the iteration's
    counted = {block for _, _, block in recorded.around.spans if block in stays or block not in recorded.blocks}
    begin, taken = recorded.around.zone(below, counted, trace.alignment)
    addresses = plan_addresses(takes, alignment=trace.alignment, effort=effort, zone_offset=begin, taken=taken)
    return Placed(swaps, addresses, resident, begin + addresses.zone_bytes + beside)


def _engine_plan(iteration: CarriedOut, placed: Placed, op_hash: OpHash) -> EnginePlan:
    blocks = [iteration.recorded.blocks[s] for s in placed.resident]
    swaps, remakes = (
        swap_columns(iteration, placed.swaps, placed.addresses, op_hash),
        remake_columns(iteration, placed.swaps, placed.addresses),
    )
    dropped = tuple(drop.original for drop in iteration.drops)
    return EnginePlan(placed.addresses, swaps, remakes, blocks, dropped=dropped, givers=iteration.givers())


def _resident(trace: Trace, swaps: Sequence[Swap]) -> list[int]:
    """Return the storages that are the same ones in every iteration, used in it, never swapped, and not pinned."""
    swapped = {swap.storage for swap in swaps}
    may_move = ((i, s) for i, s in enumerate(trace.storages) if trace.recurs(s) and s.pinned_from is None)
    return [i for i, s in may_move if s.size_bytes and i not in swapped]

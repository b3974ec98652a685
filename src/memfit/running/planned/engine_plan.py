"""The way from a recorded iteration to the engine's plan for it: addresses and swaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.ir import Plan, Swap, Timeline, Trace, align_up
from memfit.machine import Machine
from memfit.planning.addresses import AddressPlan, TwoIterations, plan_addresses, takes_of
from memfit.planning.autoswap import ANY_GAP
from memfit.planning.autoswap.search import POLICY, Search
from memfit.planning.fit import Fitted, Infeasible, fit_within
from memfit.planning.lifetimes import gaps
from memfit.running.engine import SwapTableColumns
from memfit.simulate import Simulator
from memfit.tracing.build import RawRecording, Roles, build_iteration
from memfit.tracing.compressed import Compressed, CompressedRecording
from memfit.units import format_bytes

_EFFORT = 0.5  # seconds at most, of the packer and of the search for swaps
_LEAST_EFFORT = 0.05
_SHARE = 10  # as many iterations is a search worth
_ROUNDS = 8
_ROOM_BYTES = 1 << 16  # kept free of plans that swap, or a 50th of the budget


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


@dataclass(frozen=True)
class EnginePlan:
    """The arguments of `engine.use_plan`, and the plan they were made from: three fields are None without swaps.

    `resident` are the blocks that the plan leaves below its zone.
    """

    addresses: AddressPlan
    swaps: SwapTableColumns
    resident: list[int]
    plan: Plan | None = None
    predicted: Timeline | None = None
    machine: Machine | None = None
    is_given: bool = False

    def describe(self) -> str:
        """Return the number and bytes of the swaps, in a few words."""
        if self.plan is None or not self.plan.swaps:
            return "nothing has to leave"
        moved = sum(swap.size_bytes for swap in self.plan.swaps)
        return f"{len(self.plan.swaps)} swaps of {format_bytes(moved)} in all, copied beside the ops"


@dataclass(frozen=True)
class Recorded:
    """Two whole iterations of a recording, the first of them as a trace."""

    trace: Trace
    blocks: list[int]
    iterations: TwoIterations

    @classmethod
    def of(
        cls, raw: RawRecording, op_marks: Sequence[int], tick_marks: Sequence[int], signature: str, alignment: int
    ) -> Recorded | None:
        """Return them; None if they were not alike. The marks are where the first began and the two ended."""
        begin, middle, end = op_marks
        if middle - begin != end - middle or begin == middle:
            return None
        ticks = np.stack([raw.ticks[column] for column in ("block", "bytes", "ops_begun")], axis=1)
        iterations = TwoIterations.of(ticks, tick_marks, begin, middle - begin)
        if iterations is None or not iterations.first_count:
            return None
        about = {"signature": signature, "torch_version": "", "device": "cpu", "script": "", "iteration": 0,
                 "alignment": alignment, "before": None}  # fmt: skip
        trace, blocks = build_iteration(raw, begin, middle, Roles(), **about)
        # Until the next op begins Python is at work; copies go on meanwhile as they do in ops.
        starts, ops_of_it = raw.ops["start_ns"], raw.ops[begin:middle]
        until = starts[middle] if middle < len(starts) else ops_of_it["end_ns"][-1]
        begins = np.append(ops_of_it["start_ns"], until)
        spans = np.maximum(np.diff(begins) - ops_of_it["waited_ns"], 0) / 1000
        ops = tuple(replace(op, duration_us=us) for op, us in zip(trace.ops, spans.tolist(), strict=True))
        return cls(_without_idle(replace(trace, ops=ops)), blocks, iterations)


@dataclass(frozen=True)
class CompressedIterations:
    """A `Recorded`, kept small: the recording that it is made of, cut to its two iterations, and their ends."""

    compressed: CompressedRecording
    op_marks: Sequence[int]
    tick_marks: Sequence[int]
    signature: str
    alignment: int

    @classmethod
    def of(
        cls, raw: RawRecording, op_marks: Sequence[int], tick_marks: Sequence[int], signature: str, alignment: int
    ) -> CompressedIterations:
        """Compress what lies between the marks."""
        cut = raw.cut(op_marks[0], op_marks[-1], (tick_marks[0], tick_marks[-1]))
        ops, ticks = op_marks[0], tick_marks[-1] - len(cut.ticks)
        op_marks, tick_marks = [mark - ops for mark in op_marks], [mark - ticks for mark in tick_marks]
        return cls(CompressedRecording.of(cut), op_marks, tick_marks, signature, alignment)

    def recorded(self) -> Recorded | None:
        """Return the iterations; None if they were not alike."""
        return Recorded.of(self.compressed.recording(), self.op_marks, self.tick_marks, self.signature, self.alignment)


@dataclass(frozen=True)
class CompressedPlan:
    """An EnginePlan that is kept until it is to be used, with the figures that are asked for meanwhile."""

    compressed: Compressed[EnginePlan]
    iterations: CompressedIterations
    machine: Machine | None
    is_given: bool
    compute_us: float | None  # foreseen; None where nothing is swapped
    stall_us: float

    @classmethod
    def of(cls, plan: EnginePlan, iterations: CompressedIterations) -> CompressedPlan:
        """Compress `plan`, which was made for `iterations`."""
        compute_us, stall_us = (plan.predicted.compute_us, plan.predicted.stall_us) if plan.predicted else (None, 0.0)
        return cls(Compressed(plan), iterations, plan.machine, plan.is_given, compute_us, stall_us)

    def plan(self) -> EnginePlan:
        """Return the plan."""
        return self.compressed.value()

    def trace(self) -> Trace | None:
        """Return the iteration that it is for."""
        recorded = self.iterations.recorded()
        return None if recorded is None else recorded.trace


def _without_idle(trace: Trace) -> Trace:
    """Return the trace without the bytes of storages that no op of an iteration uses: the engine moves them away."""
    used = {s for op in trace.ops for s in (*op.reads, *op.writes)}
    storages = tuple(
        replace(storage, size_bytes=0) if trace.recurs(storage) and index not in used else storage
        for index, storage in enumerate(trace.storages)
    )
    return replace(trace, storages=storages)


def make_engine_plan(
    recorded: Recorded,
    budget_bytes: int,
    machine: Machine,
    op_hash: Callable[[str], int],
    stopped: Callable[[], bool] = lambda: False,
) -> EnginePlan | None:
    """Return a plan within `budget_bytes` (0: no limit), or None when none was found.

    It gives up when `stopped()`. Nothing is swapped if everything fits without. Otherwise swaps are chosen, then
    addresses; where these leave gaps that do not fit, swaps are chosen again for as much less (SmartPool under
    AutoSwap, arXiv 1903.06631).
    """
    seconds = sum(op.duration_us for op in recorded.trace.ops) / 1e6
    effort = min(_EFFORT, max(_LEAST_EFFORT, _SHARE * seconds))
    whole = _place(recorded, (), effort)
    if not budget_bytes or whole.needed_bytes <= budget_bytes:
        return _engine_plan(recorded, whole, op_hash)
    search = Search.of(recorded.trace, machine, ANY_GAP)
    budget_bytes -= min(_ROOM_BYTES, budget_bytes // 50)
    start: tuple[int, ...] = ()

    def attempt(limit_bytes: int) -> Fitted[_Placed] | Infeasible | None:
        nonlocal start
        found = search.run(limit_bytes, effort, 0, start)
        if stopped():
            return None
        start = tuple(found.chosen.tolist()) if found.is_feasible else ()
        if not found.is_feasible:
            return Infeasible(found.least_bytes)
        placed = _place(recorded, search.swaps(found), effort)
        return Fitted(placed.needed_bytes, placed)

    placed = fit_within(budget_bytes, attempt, rounds=_ROUNDS)
    if placed is None:
        return None
    return _swapping(recorded, placed, POLICY, budget_bytes, search.simulator, op_hash)


def given_engine_plan(
    recorded: Recorded, given: Plan, budget_bytes: int, machine: Machine, op_hash: Callable[[str], int]
) -> EnginePlan | Refused:
    """Return the plan with the swaps of `given`, or the reason why it cannot be used for this iteration."""
    swaps = same_swaps(recorded.trace, given)
    if isinstance(swaps, Refused):
        return swaps
    placed = _place(recorded, swaps, _EFFORT)  # there is nothing to search: all the more for a packing that fits
    if budget_bytes and placed.needed_bytes > budget_bytes:
        needed, budget = format_bytes(placed.needed_bytes), format_bytes(budget_bytes)
        return Refused(f"with addresses it needs {needed}, and the budget is {budget}")
    simulator = Simulator(recorded.trace, machine)
    return replace(_swapping(recorded, placed, given.policy, budget_bytes, simulator, op_hash), is_given=True)


def same_swaps(trace: Trace, plan: Plan) -> list[Swap] | Refused:
    """Return the swaps of `plan`, made for another recording of the same iteration, or the reason why it was not.

    A storage is found again by its gap: its size and the ops around it. Of several alike any may be taken.
    """
    if plan.op_count != len(trace.ops):
        return Refused(f"it is for an iteration of {plan.op_count} ops, and this one has {len(trace.ops)}")
    if plan.recomputes:
        return Refused("it makes storages again, which runs do not do yet (memfit plan --policy swap does without)")
    free: dict[tuple[int, int, int], list[int]] = {}
    for gap in gaps(trace):
        free.setdefault((gap.size_bytes, gap.after, gap.before), []).append(gap.storage)
    found = []
    for swap in plan.swaps:
        alike = free.get((swap.size_bytes, swap.out_after, swap.in_before % plan.op_count))
        if not alike:
            size = format_bytes(swap.size_bytes)
            return Refused(f"no storage of {size} is idle after op {swap.out_after} of this iteration")
        found.append(replace(swap, storage=alike.pop()))
    return found


def _swapping(recorded: Recorded, placed: _Placed, policy: str, budget_bytes: int, simulator: Simulator,
              op_hash: Callable[[str], int]) -> EnginePlan:  # fmt: skip
    trace = recorded.trace
    plan = Plan(trace.signature, len(trace.ops), policy, simulator.machine.name, budget_bytes, tuple(placed.swaps),
                footprint_bytes=placed.needed_bytes)  # fmt: skip
    predicted = simulator.timeline(placed.swaps)
    whole = _engine_plan(recorded, placed, op_hash)
    return replace(whole, plan=plan, predicted=predicted, machine=simulator.machine)


@dataclass(frozen=True)
class _Placed:
    """Swaps, and the addresses of everything that comes and goes; `resident` storages lie below."""

    swaps: Sequence[Swap]
    addresses: AddressPlan
    resident: list[int]
    needed_bytes: int


def _place(recorded: Recorded, swaps: Sequence[Swap], effort: float) -> _Placed:
    trace = recorded.trace
    takes = takes_of(recorded.iterations, swaps, recorded.blocks)
    addresses = plan_addresses(takes, alignment=trace.alignment, effort=effort)
    resident = _resident(trace, swaps)
    below = sum(align_up(trace.storages[s].size_bytes, trace.alignment) for s in resident) + trace.pinned_bytes
    # Storages that pile up iteration by iteration (losses in a list) have no address in the plan, but need some room.
    beside = sum(align_up(size, trace.alignment) for size in takes.size[takes.upper < 0].tolist())
    return _Placed(swaps, addresses, resident, below + addresses.zone_bytes + beside)


def _engine_plan(recorded: Recorded, placed: _Placed, op_hash: Callable[[str], int]) -> EnginePlan:
    blocks = [recorded.blocks[s] for s in placed.resident]
    columns = _swap_columns(recorded, placed.swaps, placed.addresses, op_hash)
    return EnginePlan(placed.addresses, columns, blocks)


def _resident(trace: Trace, swaps: Sequence[Swap]) -> list[int]:
    """Return the storages that are the same ones in every iteration, used in it and never swapped."""
    swapped = {swap.storage for swap in swaps}
    return [i for i, s in enumerate(trace.storages) if trace.recurs(s) and s.size_bytes and i not in swapped]


def _swap_columns(recorded: Recorded, swaps: Sequence[Swap], addresses: AddressPlan, op_hash: Callable[[str], int]
                  ) -> SwapTableColumns:  # fmt: skip
    trace, ops = recorded.trace, len(recorded.trace.ops)
    storages = sorted({swap.storage for swap in swaps})
    index = {storage: i for i, storage in enumerate(storages)}
    born = recorded.iterations.block[recorded.iterations.size > 0][: recorded.iterations.first_count].tolist()
    ordinal = {block: k for k, block in enumerate(born)}
    takes = addresses.columns["swap"]
    take_of = {swap: take for take, swap in enumerate(takes[: len(takes) // addresses.iterations])}
    is_old = [trace.storages[s].born_before for s in storages]
    return SwapTableColumns(
        op_hashes=[op_hash(op.name) for op in trace.ops] if swaps else [],
        block=[recorded.blocks[s] if old else 0 for s, old in zip(storages, is_old, strict=True)],
        ordinal=[0 if old else ordinal[recorded.blocks[s]] for s, old in zip(storages, is_old, strict=True)],
        bytes=[trace.storages[s].size_bytes for s in storages],
        storage=[index[swap.storage] for swap in swaps],
        out_after=[swap.out_after % ops for swap in swaps],
        free_by=[swap.free_by % ops for swap in swaps],
        in_start=[swap.in_start % ops for swap in swaps],
        take=[take_of[number] for number in range(1, len(swaps) + 1)],
    )

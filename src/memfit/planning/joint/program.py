"""The time bound: how little keeping, swapping and recomputing can add to an iteration under a budget.

The linear program is a relaxation of every plan of this kind: the ops keep their order; a storage that is not in use
stays, or leaves after its last use, when its copy out may begin, and returns before its next. It returns by a copy, or
by running again the ops that made its value, directly before the op that uses it or before another remaking that reads
it. Nothing lives longer than in the trace, and what is made on the way to a value is freed at once. `RELAXED` names
what the program lets through.

Bytes wait for their copies in cumulative flows, one a direction, so that there is no variable for a storage and a
time: the copy engines are first in, first out, and bytes are interchangeable. After Checkmate (Jain et al., MLSys
2020), whose binary variables for each op and time would be too many here, and the flows of network calculus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates, end_of
from memfit.planning.joint.again import corrected
from memfit.planning.joint.build import Built, build
from memfit.planning.joint.problem import Problem
from memfit.planning.joint.recipes import may_run
from memfit.planning.joint.solver import Solution
from memfit.planning.joint.stretches import DEPTH, Idle, idle_gaps
from memfit.planning.joint.values import Values
from memfit.planning.joint.wishes import NO_WISHES, Wishes
from memfit.planning.lifetimes import Gap, live_bytes
from memfit.simulate import Simulator, add_span

RELAXED = (
    "storages leave, return and are made again in parts",
    "bytes of different storages are interchangeable while they wait for a copy",
    "memory is looked at during the fullest op of each segment only",
    "a copy may run anywhere in the segments of the ops that it lies between",
    "a copy's latency passes while another copy's bytes do",
    "of remakings in longer rows than `depth`, inputs are there, or return, at some of the ops that these may be for",
    "a remaking finds room for its inputs and what it allocates only if its op ends a segment, and copies need none",
    "gaps below `least_bytes` are away at no cost",
    "the tier has room for everything",
)
"""What plans cannot do and the program may."""


class Moves(StrEnum):
    """What a plan may do with a storage that is not in use."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class Share:
    """The program's answer for one gap: parts of 1; what is left stays. `before` is the op it returns for."""

    gap: Gap
    swap: float
    recompute: float

    @property
    def keep(self) -> float:
        """The part that stays."""
        return max(0.0, 1 - self.swap - self.recompute)


@dataclass(frozen=True, slots=True)
class Rerun:
    """How often, in parts of 1, op `op` runs again before op `before`."""

    op: int
    before: int
    times: float


@dataclass(frozen=True, slots=True)
class TimeBound:
    """The least time that any plan of a kind adds.

    Attributes:
        moves: What the plans may do.
        budget_bytes: The budget, pinned bytes included.
        compute_us: Microseconds of the iteration's ops.
        added_us: No such plan adds fewer microseconds; infinite if there is no such plan.
        reached_us: The microseconds that the program's own solution adds, with all storages in parts; `added_us` is at
            most that if none are whole.
        shares: What the solution does in each gap that it may use.
        reruns: What the solution runs again.
        wishes: What is asked for of some storages.
        relaxed: What the program lets through that plans cannot do.
    """

    moves: Moves
    budget_bytes: int
    compute_us: float
    added_us: float
    reached_us: float
    shares: tuple[Share, ...]
    reruns: tuple[Rerun, ...]
    wishes: Wishes = NO_WISHES
    relaxed: tuple[str, ...] = RELAXED

    @property
    def is_feasible(self) -> bool:
        """Whether the program has a solution; without one no plan meets the budget."""
        return self.added_us != float("inf")

    @property
    def overhead(self) -> float:
        """The bound as a part of the computation: 0.1 is 10 %."""
        return self.added_us / self.compute_us if self.compute_us else 0.0


def time_bound(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    moves: Moves = Moves.JOINT,
    clean_copies: bool = True,
    segments: int = 1000,
    least_bytes: int = 1,
    depth: int = DEPTH,
    again_us: Sequence[float] | None = None,
    wishes: Wishes = NO_WISHES,
    never: Collection[int] = (),
    loose: bool = True,
    whole_bytes: int | None = None,
    seconds: float = 60.0,
) -> TimeBound:
    """Bound the time that any plan of this kind adds.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        moves: What plans may do.
        clean_copies: Whether a storage may leave without a copy while the tier has an unchanged one.
        segments: The most segments of time; more of them mostly make the bound higher, and its finding longer.
        least_bytes: Gaps of smaller storages are away at no cost, and have no variables.
        depth: How many remakings in a row, each for the next, have to find their inputs.
        again_us: For each op the microseconds that it takes when it runs again; by default its duration.
        wishes: What is asked for of some storages.
        never: Storages that cannot be made again, nor on the way.
        loose: Whether storages may return in rows of remakings that are not followed. Without that it is no bound, and
            the solution is nearer to a plan.
        whole_bytes: Storages of so many bytes, and larger ones, are away as wholes; None if none are. The bound is then
            that of branch and bound, without a correction of rounding, and as high as it gets in `seconds`.
        seconds: The longest time for that.

    Returns:
        The bound, and the solution that it comes from.
    """
    trace = corrected(trace)
    simulator = Simulator(trace, machine)
    found = [gap for gap in candidates(trace, ANY_GAP) if gap.storage not in wishes.keep]
    load, begin = simulator.load_bytes.copy(), _begin_bytes(trace)
    for gap in found:
        if gap.size_bytes < least_bytes:
            held = align_up(gap.size_bytes, trace.alignment)
            add_span(load, gap.after + 1, end_of(trace, gap), -held)
            add_span(begin, gap.after + 1, end_of(trace, gap) + 1, -held)
    compute_us = float(simulator.duration_us.sum())
    if load.max() <= budget_bytes:
        return TimeBound(moves, budget_bytes, compute_us, 0.0, 0.0, (), (), wishes)
    usable = [gap for gap in found if gap.size_bytes >= least_bytes]
    small = [gap for gap in found if gap.size_bytes < least_bytes]
    values = None if moves is Moves.SWAP else Values.of(trace, again_us, never)
    again = simulator.duration_us if values is None else np.array(values.again_us, dtype=np.float64)
    idle = idle_gaps(trace, usable, values, depth, loose=loose, others=small)
    problem = Problem(
        trace, machine, simulator.duration_us, again, load, begin, idle, budget_bytes,
        may_swap=moves is not Moves.RECOMPUTE, clean_copies=clean_copies, segments=segments,
        hidden=tuple(_run_for(values, small)) if values is not None and loose else (),
    )  # fmt: skip
    built = build(problem)
    _forbid(problem.idle, built, wishes)
    solution = built.program.solve()
    if solution is None:
        return TimeBound(moves, budget_bytes, compute_us, float("inf"), float("inf"), (), (), wishes)
    least = max(0.0, min(solution.bound, solution.objective))
    if whole_bytes is not None:
        large = (columns for number, columns in built.columns.items() if problem.idle[number].held_bytes >= whole_bytes)
        least = max(least, built.program.whole_bound({each for columns in large for each in columns.all()}, seconds))
    return TimeBound(
        moves, budget_bytes, compute_us, least * built.us, solution.objective * built.us,
        _shares(problem.idle, built, solution), _reruns(built, solution), wishes,
        RELAXED if whole_bytes is None else (RELAXED[0] + ", below `whole_bytes`", *RELAXED[1:]),
    )  # fmt: skip


def _run_for(values: Values, small: Iterable[Gap]) -> Iterator[tuple[int, int, int]]:
    """Yield the ops that may run again for gaps that have no variables, from which op to which."""
    for gap in small:
        if gap.is_inner:
            for op in may_run(values, values.before(gap.storage, gap.before), gap.before):
                yield op, gap.after + 1, gap.before


def _forbid(idle: list[Idle], built: Built, wishes: Wishes) -> None:
    """Leave the columns of ways that storages may not take at nothing."""
    for number, columns in built.columns.items():
        storage = idle[number].gap.storage
        swaps = (columns.swap, columns.beyond_swap) if storage in wishes.never_swapped else ()
        remakings = (columns.remake, columns.beyond_remake) if storage in wishes.never_remade else ()
        for column in (column for kind in (*swaps, *remakings) for column in kind.values()):
            built.program.upper[column] = 0.0


def _begin_bytes(trace: Trace) -> Int64Array:
    """Return the bytes alive right before each op begins, pinned bytes included."""
    live = live_bytes(trace, aligned=True)
    return live[np.array([op.first_tick for op in trace.ops], dtype=np.int64)] + trace.pinned_bytes


def _shares(idle: list[Idle], built: Built, solution: Solution) -> tuple[Share, ...]:
    return tuple(
        Share(idle[number].gap, _sum(solution, columns.swap), _sum(solution, columns.remake))
        for number, columns in built.columns.items()
    )


def _sum(solution: Solution, columns: dict[int, int]) -> float:
    """Return the part that returns in this way at any cut, 1 at most."""
    return min(1.0, sum(float(solution.values[column]) for column in columns.values()))


def _reruns(built: Built, solution: Solution) -> tuple[Rerun, ...]:
    return tuple(
        Rerun(op, before, times)
        for (op, before), columns in sorted(built.reruns.items())
        if (times := max(float(solution.values[column]) for column in columns)) > 1e-6
    )

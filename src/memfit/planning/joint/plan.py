"""A joint plan: what is dropped and made again, and swaps for the rest, as near to the time bound as is found.

A coarse program says where to begin. A native search goes on from there and from nothing, with the exact time and
bytes of remakings and a sketch of swaps (native/joint). What it finds is carried out on the trace, and memfit's
planner of swaps plans the result, which the simulator times. All of it counts its work and reads no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

import numpy as np

from memfit import _native
from memfit.errors import BudgetError
from memfit.ir import Recompute, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import ANY_GAP, Thresholds, candidates
from memfit.planning.autoswap.search import Search, SwapPlan, plan_under_budget, too_small
from memfit.planning.handing_over import without_handovers
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.columns import KEPT, PASSING, REMADE, SWAPPED, Hints, JointColumns, Waits
from memfit.planning.joint.program import Moves, TimeBound, time_bound
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.joint.wishes import NO_WISHES, Wishes, without_swaps
from memfit.planning.lifetimes import Gap
from memfit.progress import counted
from memfit.simulate import load_bytes

_SEGMENTS = 150
_COARSE, _FINE = 3000, 20_000
"""Storages below these parts of the budget are away at no cost in the program, and stay in the search."""
_MOST_OPS = 40_000
"""Of a trace whose program is solved; the search of longer ones begins with nothing away."""
_USED = 0.4  # of a gap: the program uses it
_LEAST = 0.1  # of what the program does not do in a gap, the search tries so much
_SLOWER, _STEP, _STEEP, _SLOWEST = 1.08, 0.045, 0.09, 1.5
"""By how much the links are slower in a search: both directions at once are, and whole storages wait now and then."""
_SHORT, _LONG, _LONG_OP = 0.5, 1.0, 3.3e-4  # seconds of the first two runs and of the others, and of these for each op
_TIMED_OPS = 2000  # of a trace in whose search waits are timed: in a longer one that takes too long
_SOON, _SOON_OP, _SOON_MOST = 0.1, 1e-4, 1.0  # seconds of the only run for a plan that is wanted soon, and for each op
_SOON_AGAIN = 0.25  # of that for a run that goes on from another budget's
_MENDED, _AFRESH = 2, 5  # the runs that begin with the program's solution, mended first, and with nothing away
_ENOUGH = 1e-3  # of the computation: a plan so near to the bound is not improved
_OF_SWAPS = 0.3  # of a run's effort is what each search of the planner of swaps has, if anything waits
_FREE = 1e-6  # of the computation: shorter stalls do not count


class Cancelled(Exception):
    """Nobody wants the plan any more."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done in each gap.

    Attributes:
        remade: The gaps in which storages are dropped and made again.
        passing: Those of them that do not end when another storage is made from theirs: see `arrange`.
        swapped: The gaps in which storages are meant to be swapped; the planner of swaps decides.
    """

    remade: frozenset[Gap]
    passing: frozenset[Gap]
    swapped: frozenset[Gap]

    def arranged(self, values: Values) -> tuple[Recompute, ...]:
        """Return when the storages are made again."""
        return tuple(arrange(values, self.remade, self.passing))


NOTHING = Choice(frozenset(), frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class JointPlan:
    """A plan of both kinds.

    Attributes:
        choice: What is done in each gap.
        recomputes: The storages that are dropped and made again.
        transformed: The trace in which that is done.
        swaps: The swaps of that trace, and its timeline.
        compute_us: Microseconds of the original trace's ops.
        bind: Finds `bound`.
    """

    choice: Choice
    recomputes: tuple[Recompute, ...]
    transformed: Transformed
    swaps: SwapPlan
    compute_us: float
    bind: Callable[[], TimeBound] = field(repr=False)

    @property
    def bound(self) -> TimeBound:
        """A time bound of the budget, by a coarse program, which is solved when it is first asked for.

        `time_bound` finds a higher one. It is 0 for a trace of too many ops.
        """
        return self.bind()

    @property
    def added_us(self) -> float:
        """The microseconds that the plan adds: ops that run again, and waits for copies."""
        return self.swaps.timeline.iteration_us - self.compute_us

    @property
    def overhead(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return self.added_us / self.compute_us if self.compute_us else 0.0


def plan_jointly(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    moves: Moves = Moves.JOINT,
    effort: float = 1.0,
    again_us: Sequence[float] | None = None,
    most_ops: int = _MOST_OPS,
    wishes: Wishes = NO_WISHES,
    never: Collection[int] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> JointPlan:
    """Return remakings and swaps that keep every op within `budget_bytes`, with the least added time that is found.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        budget_bytes: What the arena may take.
        moves: What plans may do; with `RECOMPUTE` none of them swaps.
        effort: Seconds of counted work of all searches, about those of a slow core; the program's are not counted.
        again_us: For each op the microseconds that it takes when it runs again; by default its duration.
        most_ops: No program is solved for a trace of more ops.
        wishes: What is asked for of some storages.
        never: Storages that cannot be made again, nor on the way.
        stopped: Whether nobody wants the plan any more, asked now and then.

    Returns:
        The plan.

    Raises:
        BudgetError: No plan was found.
        Cancelled: It was `stopped`.
        InputError: `again_us` has not one number for each op.
    """
    values = Values.of(corrected(trace), again_us, never)
    return _Search(values, machine, budget_bytes, moves, effort, most_ops, wishes, stopped).run()


def soon_planner(
    trace: Trace,
    machine: Machine,
    *,
    again_us: Sequence[float] | None = None,
    wishes: Wishes = NO_WISHES,
    never: Collection[int] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Callable[[int], JointPlan]:
    """Return what makes a joint plan for which somebody waits: no program is solved, and one short run is all.

    It is called with a budget (bytes), and again with others: what does not depend on them is kept. The plan adds some
    percent where swaps alone add many (docs/joint.md). The arguments, and what is raised, are those of `plan_jointly`.
    """
    values = Values.of(corrected(trace), again_us, never)
    effort = min(max(_SOON, _SOON_OP * len(trace.ops)), _SOON_MOST)
    search, start = _Search(values, machine, 0, Moves.JOINT, effort, 0, wishes, stopped), list[int]()

    def plan(budget_bytes: int) -> JointPlan:
        nonlocal start
        search.budget_bytes = budget_bytes
        found, start = search.run_soon(start)
        return found

    return plan


def joint_effort(trace: Trace, effort: float) -> float:
    """Return the seconds of all searches that `plan_jointly` takes at most."""
    runs = sum(_efforts(effort, len(trace.ops))) + min(effort, _SHORT)
    return runs * (2 if trace.handovers else 1)  # those are planned without, too


class _Search:
    def __init__(
        self,
        values: Values,
        machine: Machine,
        budget_bytes: int,
        moves: Moves,
        effort: float,
        most_ops: int,
        wishes: Wishes,
        stopped: Callable[[], bool],
    ) -> None:
        self.values, self.machine, self.budget_bytes = values, machine, budget_bytes
        self.moves, self.effort, self.wishes, self.stopped = moves, effort, wishes, stopped
        self.most_ops = most_ops
        self.compute_us = sum(op.duration_us for op in values.trace.ops)
        coarse = len(values.trace.ops) <= most_ops and moves is not Moves.SWAP
        self.guide = self._coarse(loose=False) if coarse else self._no_bound()
        self.bind = cache(partial(self._coarse, loose=True) if coarse else self._no_bound)

    def _coarse(self, *, loose: bool) -> TimeBound:
        """Return a coarse program's solution. Without one the search finds out whether there is a plan."""
        found = time_bound(
            self.values.trace, self.machine, self.budget_bytes, moves=self.moves, segments=_SEGMENTS,
            least_bytes=max(1, self.budget_bytes // _COARSE), again_us=self.values.again_us, wishes=self.wishes,
            never=self.values.never, loose=loose,
        )  # fmt: skip
        return found if found.is_feasible else self._no_bound()

    def _no_bound(self) -> TimeBound:
        return TimeBound(self.moves, self.budget_bytes, self.compute_us, 0.0, 0.0, (), (), self.wishes)

    def run(self) -> JointPlan:
        """Return the best plan of what the runs find, and of swaps alone."""
        if self.moves is Moves.SWAP or load_bytes(self.values.trace).max() <= self.budget_bytes:
            return self._plan(NOTHING, self.effort)
        best = self._best_of_runs()
        if self.values.trace.handovers and (best is None or not self._is_enough(best)):
            best = self._as_without_handovers(best)
        if best is None:
            return self._plan(NOTHING, self.effort)
        if self.moves is Moves.RECOMPUTE or best.added_us <= _FREE * self.compute_us:
            return best
        try:
            return min(best, self._plan(NOTHING, min(self.effort, _SHORT)), key=lambda plan: plan.added_us)
        except BudgetError:
            return best

    def run_soon(self, start: list[int]) -> tuple[JointPlan, list[int]]:
        """Return the plan of one run, which goes on from `start` if there is one, and the modes that it found.

        Where they do not do, swaps alone are planned.
        """
        if load_bytes(self.values.trace).max() <= self.budget_bytes:
            return self._plan(NOTHING, self.effort), start
        columns, effort = self.columns, self.effort * (_SOON_AGAIN if start else 1)
        kept, hints = self._rounded(columns)
        pace = _Pace(len(self.values.trace.ops))
        found = self._searched(start or kept, pace, 0, effort, hints)
        if self.stopped():
            raise Cancelled
        try:
            return self._plan(_choice(columns, found), effort), found.modes.tolist()
        except BudgetError:
            return self._plan(NOTHING, self.effort), start

    def _best_of_runs(self) -> JointPlan | None:
        """Search from the program's solution, then from the best so far; once, mended, from the solution again.

        Where nothing fits without waits, one run begins with nothing away.
        """
        columns = self.columns
        (rounded, hints), pace = self._rounded(columns), _Pace(len(self.values.trace.ops))
        start, best = rounded, None
        for run, effort in enumerate(counted(_efforts(self.effort, len(self.values.trace.ops)))):
            if self.stopped():
                raise Cancelled
            afresh = run == _AFRESH and pace.is_tight
            begin = rounded if run == _MENDED else [KEPT] * len(rounded) if afresh else start
            found = self._searched(begin, pace, run, effort, None if afresh else hints)
            pace.is_tight = pace.is_tight or found.over_bytes > 0
            try:
                plan = self._plan(_choice(columns, found), effort)
            except BudgetError:
                start = found.modes.tolist()
                continue
            if best is None or plan.added_us < best.added_us:
                best, start = plan, found.modes.tolist()
            if self._is_enough(best):
                break
            pace.adjust(waits=plan.swaps.timeline.stall_us > _FREE * self.compute_us)
        return best

    def _searched(
        self, start: list[int], pace: _Pace, run: int, effort: float, hints: Hints | None
    ) -> _native.FoundChoice:
        """Return what a run of the native search finds that goes on from `start`; the planner of swaps has the rest."""
        return self.columns.search(
            start,
            pace.links(run, self.machine),
            self.budget_bytes,
            effort=effort * (1 - _OF_SWAPS),
            seed=run,
            may_swap=self.moves is not Moves.RECOMPUTE,
            hints=hints,
            mends=run == _MENDED,
            waits=pace.kind(run),
        )

    def _as_without_handovers(self, best: JointPlan | None) -> JointPlan | None:
        """Return `best` or what is found where nothing hands its place over, which does here too."""
        values = Values.of(without_handovers(self.values.trace), self.values.again_us, self.values.never)
        others = _Search(
            values, self.machine, self.budget_bytes, self.moves, self.effort, self.most_ops, self.wishes, self.stopped
        )
        try:
            plan = self._plan(others.run().choice, self.effort)
        except BudgetError:
            return best
        return plan if best is None or plan.added_us < best.added_us else best

    def _is_enough(self, plan: JointPlan) -> bool:
        return plan.added_us - self.guide.added_us <= _ENOUGH * self.compute_us

    @cached_property
    def columns(self) -> JointColumns:
        """The gaps among which is chosen: for a budget that is a little smaller, the same."""
        least = max(1, self.budget_bytes // _FINE)
        found = [gap for gap in candidates(self.values.trace, ANY_GAP) if gap.size_bytes >= least]
        allowed = [gap for gap in found if gap.storage not in self.wishes.keep]
        return JointColumns.of(self.values, allowed, self.wishes)

    def _rounded(self, columns: JointColumns) -> tuple[list[int], Hints]:
        """Return the modes that the program has more of, where it uses a gap enough; and what it has of each."""
        shares = {(share.gap.storage, share.gap.after): share for share in self.guide.shares}
        modes = [KEPT] * len(columns.gaps)
        hints = Hints(np.ones(len(modes)), np.full(len(modes), 0.7))
        for number, gap in enumerate(columns.gaps):
            share = shares.get((gap.storage, gap.after))
            if share is None:
                continue
            away = share.swap + share.recompute
            hints.keep[number] = max(share.keep, _LEAST)
            hints.remake[number] = min(max(share.recompute / max(away, 1e-9), _LEAST), 1 - _LEAST)
            if away >= _USED:
                is_remade = np.isfinite(columns.remaking_us[number]) and share.recompute > share.swap
                modes[number] = REMADE if is_remade else SWAPPED
        if self.moves is Moves.RECOMPUTE:
            modes = [KEPT if mode == SWAPPED else mode for mode in modes]
        return modes, hints

    def _plan(self, choice: Choice, effort: float) -> JointPlan:
        recomputes = choice.arranged(self.values)
        made = with_recomputes(self.values, recomputes)
        if self.moves is Moves.RECOMPUTE:
            _require_fit(made.trace, self.budget_bytes)
        swaps = self._swaps(made, choice.swapped, effort * _OF_SWAPS)
        return JointPlan(choice, recomputes, made, swaps, self.compute_us, self.bind)

    def _swaps(self, made: Transformed, swapped: frozenset[Gap], effort: float) -> SwapPlan:
        """Return swaps of the trace with remakings: from those of the search on, if any op waits then from others."""
        never_swapped = self.wishes.never_swapped
        trace = without_swaps(made.trace, (s for s, was in enumerate(made.storage_of) if was in never_swapped))
        search = Search.of(trace, self.machine, Thresholds())
        meant: dict[int, list[Gap]] = defaultdict(list)
        for gap in swapped:
            meant[gap.storage].append(gap)
        start = [
            number
            for number, gap in enumerate(search.found)
            if any(_lies_within(made, gap, whole) for whole in meant.get(made.storage_of[gap.storage], ()))
        ]
        found = search.run(self.budget_bytes, effort, 0, start)
        plan = search.plan(self.budget_bytes, found) if found.is_feasible else None
        if plan is not None and plan.timeline.overhead <= _FREE:
            return plan
        found = search.run(self.budget_bytes, effort, 0)
        if found.is_feasible:
            other = search.best(self.budget_bytes, found)
        else:
            other = plan_under_budget(trace, self.machine, self.budget_bytes, effort=effort, thresholds=ANY_GAP)
        return min((each for each in (plan, other) if each), key=lambda each: each.timeline.iteration_us)


@dataclass(slots=True)
class _Pace:
    """How the next run sees the links.

    Attributes:
        ops: The number of ops of the trace.
        is_tight: Whether a search has found nothing that fits without waits.
        waits: Whether the last plan waits.
        slower: By how much the links count as slower than they are: by more after a plan that waits, by less after one
            that does not, by halves as the one follows the other.
    """

    ops: int
    is_tight: bool = False
    waits: bool | None = None
    slower: float = _SLOWER
    step: float = _STEP

    def kind(self, run: int) -> Waits:
        """Return what ops may wait for; some runs know how long that takes."""
        if self.ops > _TIMED_OPS:
            return Waits.WHERE_FORCED if self.is_tight else Waits.NEVER
        if self.is_tight:
            return Waits.TIMED if run % 2 == 0 else Waits.WHERE_FORCED
        return Waits.TIMED if self.waits and run % 2 == 1 else Waits.NEVER

    def links(self, run: int, machine: Machine) -> Machine:
        """Return `machine` as it counts in a run."""
        return machine if self.kind(run) is Waits.TIMED else machine.slowed(self.slower, self.slower)

    def adjust(self, *, waits: bool) -> None:
        """Learn from a plan."""
        if self.is_tight:
            self.step = _STEEP
        elif self.waits is not None and waits is not self.waits:
            self.step /= 2
        self.waits = waits
        self.slower = min(self.slower + self.step, _SLOWEST) if waits else max(self.slower - self.step, 1.0)


def _efforts(effort: float, ops: int) -> Iterator[float]:
    """Yield the seconds of each run: a greater effort has the runs of a smaller one first, so that it finds no less."""
    yield from (min(effort / 2, _SHORT),) * 2
    yield from (max(_LONG, _LONG_OP * ops),) * int((effort - 2 * _SHORT) / max(_LONG, _LONG_OP * ops) + 1e-9)


def _lies_within(made: Transformed, gap: Gap, whole: Gap) -> bool:
    """Return whether `gap` of the trace with remakings is a part of the gap `whole` of the original one."""
    if whole.cyclic or gap.cyclic:
        return whole.cyclic and gap.cyclic
    again = made.runs_again[gap.after]
    return (again or whole.after <= made.op_of[gap.after]) and whole.after < _next_op(made, gap.before) <= whole.before


def _next_op(made: Transformed, op: int) -> int:
    """Return the original op that `op` of the trace with remakings is, or runs again for."""
    while made.runs_again[op]:
        op += 1
    return made.op_of[op]


def _choice(columns: JointColumns, found: _native.FoundChoice) -> Choice:
    of_mode: dict[int, set[Gap]] = {mode: set() for mode in range(7)}
    for gap, mode in zip(columns.gaps, found.modes.tolist(), strict=True):
        of_mode[mode].add(gap)
    swapped = of_mode[SWAPPED].union(*(of_mode[mode] for mode in (4, 5, 6)))
    return Choice(frozenset(of_mode[REMADE] | of_mode[PASSING]), frozenset(of_mode[PASSING]), frozenset(swapped))


def _require_fit(trace: Trace, budget_bytes: int) -> None:
    """Raise BudgetError if `trace` needs swaps."""
    held = load_bytes(trace)
    if held.max() > budget_bytes:
        raise too_small(trace, budget_bytes, int(held.max()), int(held.argmax()))

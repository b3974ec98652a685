"""Many ranks that run one trace by one plan: what they wait for each other, and for a disk that they share.

Each rank goes through the iteration as `memfit.simulate` says. At a collective it waits for all others; so it does at
the iteration's end if the trace has none, as data parallel ranks do. The ranks of a node have one tier: copies of the
same direction share its speed alike, and both directions at once run at `Machine.both_factor` of it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random

from memfit.ir import Op, Swap, Trace
from memfit.machine import Machine
from memfit.simulate import Simulator

MOST_RANKS = 1024
_COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_WAITS_ALONE = ("wait_tensor", "::monitored_barrier")  # they wait for what was begun, or are not training
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a run.

    Attributes:
        count: The number of them.
        per_node: The ranks that share a node's tier.
        spread: In each iteration a rank's ops take 1 - spread to 1 + spread times as long, each factor being as likely.
        network_bytes_per_s: The speed of a rank's link to the others; 0 for collectives that take no time.
    """

    count: int
    per_node: int
    spread: float = 0.0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Together:
    """The mean over ranks and iterations, in microseconds; the last two are parts of the first."""

    iteration_us: float
    stall_us: float  # waited for copies
    skew_us: float  # waited for other ranks


def run_together(
    trace: Trace, machine: Machine, swaps: Sequence[Swap], ranks: Ranks, iterations: int = 8, warm_up: int = 2
) -> Together:
    """Return how long the iterations of `ranks` take that all run `trace` by `swaps` on nodes of `machine`.

    The first `warm_up` iterations do not count. The spread of times is the same in each call.
    """
    return _Run(trace, machine, swaps, ranks, iterations, warm_up).result()


def collectives(trace: Trace) -> list[int]:
    """Return the ops of the trace at which ranks wait for each other."""
    return [at for at, op in enumerate(trace.ops) if _is_collective(op)]


def _is_collective(op: Op) -> bool:
    return op.name.startswith(_COLLECTIVES) and not op.name.endswith(_WAITS_ALONE)


@dataclass(eq=False, slots=True)
class _Copy:
    work_us: float
    rank: int
    done: bool = False
    is_awaited: bool = False


@dataclass(eq=False, slots=True)
class _Way:
    """The copies of one direction on a node: each rank's in their order, those of several ranks at once.

    `passed_us` is the work that each copy under way has had since the beginning.
    """

    passed_us: float = 0.0
    waiting: dict[int, deque[_Copy]] = field(default_factory=lambda: defaultdict(deque))
    under_way: list[tuple[float, int, _Copy]] = field(default_factory=list)  # by what `passed_us` is at its end


class _Tier:
    """A node's tier."""

    def __init__(self, both_factor: float) -> None:
        self.out, self.into = _Way(), _Way()
        self._both_factor = both_factor
        self._now = 0.0
        self._number = 0
        self.version = 0

    def push(self, way: _Way, copy: _Copy, now: float) -> None:
        """Enqueue a copy behind its rank's others."""
        self._advance(now)
        queue = way.waiting[copy.rank]
        queue.append(copy)
        if len(queue) == 1:
            self._begin(way, copy)

    def ended(self, now: float) -> list[_Copy]:
        """Return the copies that have ended by `now`."""
        self._advance(now)
        done = []
        for way in (self.out, self.into):
            while way.under_way and way.under_way[0][0] <= way.passed_us + _CLOSE * max(1.0, now):
                end_us, _, copy = heapq.heappop(way.under_way)
                way.passed_us = max(way.passed_us, end_us)
                copy.done = True
                done.append(copy)
                queue = way.waiting[copy.rank]
                queue.popleft()
                if queue:
                    self._begin(way, queue[0])
        return done

    def next_end(self) -> float | None:
        """Return when the next copy ends if no other begins; None if none is under way."""
        ends = [self._now + (way.under_way[0][0] - way.passed_us) / self._speed(way)
                for way in (self.out, self.into) if way.under_way]  # fmt: skip
        return min(ends, default=None)

    def _begin(self, way: _Way, copy: _Copy) -> None:
        self._number += 1
        heapq.heappush(way.under_way, (way.passed_us + copy.work_us, self._number, copy))

    def _advance(self, now: float) -> None:
        speeds = [self._speed(way) for way in (self.out, self.into)]
        for way, speed in zip((self.out, self.into), speeds, strict=True):
            way.passed_us += (now - self._now) * speed
        self._now = now
        self.version += 1

    def _speed(self, way: _Way) -> float:
        """Return what each copy of the direction gets of the tier's speed."""
        is_both = bool(self.out.under_way and self.into.under_way)
        return (self._both_factor if is_both else 1.0) / len(way.under_way) if way.under_way else 0.0


@dataclass(slots=True)
class _Point:
    """An op at which something happens: swaps by what happens to them, and the time of the ops before it."""

    op: int
    frees: list[int] = field(default_factory=list)
    ins: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    outs: list[int] = field(default_factory=list)
    is_collective: bool = False
    before_us: float = 0.0


_Wait = float | _Copy | None  # until a time, until a copy has ended, until all ranks are there


class _Run:
    """One simulation: ranks are generators that yield what they wait for."""

    def __init__(self, trace: Trace, machine: Machine, swaps: Sequence[Swap], ranks: Ranks, iterations: int,
                 warm_up: int) -> None:  # fmt: skip
        self._simulator = Simulator(trace, machine)
        self._columns = self._simulator.columns(swaps)
        self._ops = len(trace.ops)
        self._ranks, self._iterations, self._warm_up = ranks, iterations, warm_up
        self._at_the_end = not collectives(trace)
        self._points, self._after_us = self._laid_out(trace)
        self._collective_us = self._times_of_collectives(trace)
        self._tiers = [_Tier(machine.both_factor) for _ in range(-(-ranks.count // ranks.per_node))]
        self._events: list[tuple[float, int, int, int]] = []  # time, order, rank or ~tier, version of the tier
        self._number = 0
        self._now = 0.0
        self._there: list[int] = []  # ranks that wait for the others
        self._stall_us = self._skew_us = self._begun_us = self._ended_us = 0.0

    def result(self) -> Together:
        """Run it."""
        running = [self._rank(rank) for rank in range(self._ranks.count)]
        for rank, one in enumerate(running):
            self._go_on(rank, one)
        while self._events:
            self._now, _, who, version = heapq.heappop(self._events)
            if who >= 0:
                self._go_on(who, running[who])
            elif self._tiers[~who].version == version:
                self._end_copies(~who, running)
        share = 1 / (self._ranks.count * self._iterations)
        return Together((self._ended_us - self._begun_us) / self._iterations, self._stall_us * share,
                        self._skew_us * share)  # fmt: skip

    def _go_on(self, rank: int, one: Generator[_Wait, None, None]) -> None:
        """Let a rank run until it has to wait."""
        for wait in one:
            if isinstance(wait, _Copy):
                if wait.done:
                    continue
                wait.is_awaited = True
                return
            if wait is None:
                self._meet(rank)
            else:
                self._add(wait, rank)
            return

    def _meet(self, rank: int) -> None:
        self._there.append(rank)
        if len(self._there) == self._ranks.count:
            for other in self._there:
                self._add(self._now, other)
            self._there = []

    def _end_copies(self, number: int, running: list[Generator[_Wait, None, None]]) -> None:
        for copy in self._tiers[number].ended(self._now):
            if copy.is_awaited:
                self._go_on(copy.rank, running[copy.rank])
        self._look_at(number)

    def _add(self, time: float, who: int, version: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, who, version))

    def _look_at(self, number: int) -> None:
        """Come back when the next copy of a tier ends."""
        if (end := self._tiers[number].next_end()) is not None:
            self._add(end, ~number, self._tiers[number].version)

    def _rank(self, rank: int) -> Generator[_Wait, None, None]:
        random = Random(rank)
        outs: dict[tuple[int, int], _Copy] = {}
        ins: dict[tuple[int, int], _Copy] = {}
        for iteration in range(self._warm_up + self._iterations):
            if iteration == self._warm_up:
                self._begun_us = max(self._begun_us, self._now)
            counts = iteration >= self._warm_up
            factor = 1 + self._ranks.spread * (2 * random.random() - 1)
            for point in self._points:
                yield self._now + factor * point.before_us
                yield from self._copied(point, iteration, rank, outs, ins, counts)
                if point.is_collective:
                    yield from self._all_there(self._collective_us[point.op], counts)
                yield self._now + factor * float(self._simulator.duration_us[point.op])
                for swap in point.outs:
                    outs[swap, iteration] = self._push(rank, float(self._columns.out_us[swap]), is_out=True)
            yield self._now + factor * self._after_us
            if self._at_the_end:
                yield from self._all_there(self._collective_us[-1], counts)
        self._ended_us = max(self._ended_us, self._now)

    def _copied(
        self, point: _Point, iteration: int, rank: int, outs: dict[tuple[int, int], _Copy],
        ins: dict[tuple[int, int], _Copy], counts: bool,
    ) -> Generator[_Wait, None, None]:  # fmt: skip
        """Do what is due to swaps before an op begins."""
        columns, began = self._columns, self._now
        for swap in point.frees:
            if (copy := outs.get((swap, iteration - int(columns.free_by[swap]) // self._ops))) is not None:
                yield copy
        for swap in point.ins:
            since = iteration - int(columns.in_start[swap]) // self._ops
            if outs.pop((swap, since), None) is not None and columns.in_us[swap] > 0:
                ins[swap, since] = self._push(rank, float(columns.in_us[swap]), is_out=False)
        for swap in point.uses:
            if (copy := ins.pop((swap, iteration - int(columns.in_before[swap]) // self._ops), None)) is not None:
                yield copy
        self._stall_us += counts * (self._now - began)

    def _all_there(self, takes_us: float, counts: bool) -> Generator[_Wait, None, None]:
        began = self._now
        yield None
        self._skew_us += counts * (self._now - began)
        if takes_us:
            yield self._now + takes_us

    def _push(self, rank: int, work_us: float, *, is_out: bool) -> _Copy:
        number = rank // self._ranks.per_node
        tier, copy = self._tiers[number], _Copy(work_us, rank)
        tier.push(tier.out if is_out else tier.into, copy, self._now)
        self._look_at(number)
        return copy

    def _laid_out(self, trace: Trace) -> tuple[list[_Point], float]:
        """Return the ops at which something happens, and the microseconds of those after the last."""
        points: dict[int, _Point] = {}
        columns = self._columns
        count = len(columns.size_bytes)

        def at(op: int) -> _Point:
            return points.setdefault(op % self._ops, _Point(op % self._ops))

        nearest = sorted(range(count), key=lambda s: int(columns.in_before[s] - columns.in_start[s]))
        for swap in range(count):
            at(int(columns.out_after[swap])).outs.append(swap)
            at(int(columns.free_by[swap])).frees.append(swap)
        for swap in nearest:
            at(int(columns.in_start[swap])).ins.append(swap)
            at(int(columns.in_before[swap])).uses.append(swap)
        for op in collectives(trace):
            at(op).is_collective = True
        before, ordered = 0, [points[op] for op in sorted(points)]
        for point in ordered:
            point.before_us = float(self._simulator.duration_us[before : point.op].sum())
            before = point.op + 1
        return ordered, float(self._simulator.duration_us[before:].sum())

    def _times_of_collectives(self, trace: Trace) -> dict[int, float]:
        """Return the microseconds of each collective: a ring's, in which every byte goes around twice but once."""
        speed, count = self._ranks.network_bytes_per_s, self._ranks.count
        us_per_byte = 2 * (count - 1) / count / speed * 1e6 if speed else 0.0
        if self._at_the_end:  # the gradients, which are as large as the parameters
            return {-1: us_per_byte * sum(s.size_bytes for s in trace.storages if s.category == "parameter")}
        ops = ((op, trace.ops[op]) for op in collectives(trace))
        return {at: us_per_byte * sum(trace.storages[s].size_bytes for s in {*op.reads, *op.writes}) for at, op in ops}

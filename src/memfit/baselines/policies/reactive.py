"""The mechanism of the on-demand policies: it evicts only when an op does not fit, and waits for the copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from memfit.ir import Swap, Trace, align_up
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.lifetimes import Gap
from memfit.simulate import load_bytes

_MOST_ROUNDS = 8

Rank = Callable[[Gap, int, int], float]
"""Of a gap, with the ops of its last use and of its next one, counted from the iteration's beginning: the largest goes
first."""
Prefetch = Callable[[int], int]
"""The op, at most the one given and counted on over the end, at which a storage used there is fetched."""


def at_its_use(op: int) -> int:
    """Fetch a storage when it is used, and not before."""
    return op


class _Absent:
    """The bytes that are away, and the ops at which they come back."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._back: dict[int, int] = defaultdict(int)

    def add(self, size_bytes: int, fetched_at: int, op: int) -> None:
        if fetched_at >= op:  # or it was back before the iteration began
            self.size_bytes += size_bytes
            self._back[fetched_at] += size_bytes

    def come_back(self, op: int) -> None:
        self.size_bytes -= self._back.pop(op, 0)


class _Idle:
    """The gaps that have begun and whose storages are in the arena, by rank."""

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._heap: list[tuple[float, int]] = []

    def add(self, gap: int, rank: float) -> None:
        self._members.add(gap)
        heappush(self._heap, (-rank, gap))

    def discard(self, gap: int) -> None:
        self._members.discard(gap)

    def pop(self) -> int | None:
        """Remove and return the gap of the highest rank; None if the set is empty."""
        while self._heap:
            gap = heappop(self._heap)[1]
            if gap in self._members:  # entries of what has left are not looked for
                self._members.remove(gap)
                return gap
        return None


class Reactive:
    """Evicts among `gaps` when an op does not fit, by `rank`; a storage comes back at `prefetch` of its next use."""

    def __init__(self, trace: Trace, gaps: Sequence[Gap], rank: Rank, prefetch: Prefetch = at_its_use) -> None:
        self._trace, self._rank, self._prefetch = trace, rank, prefetch
        # One that does not return has to have left before the next iteration makes its like: it may want to later.
        self._gaps = [gap for gap in gaps if gap.returns or not trace.outlives(trace.storages[gap.storage])]
        self._load = load_bytes(trace).tolist()
        self._held = [align_up(gap.size_bytes, trace.alignment) for gap in self._gaps]
        self._begins: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        for index, gap in enumerate(self._gaps):
            self._begins[gap.after].append(index)
            self._ends[gap.before].append(index)

    def swaps(self, budget_bytes: int) -> list[Swap]:
        """Return the swaps once the iteration repeats; where an op does not fit, all that can be evicted is."""
        away: dict[int, int] = {}  # gap -> op it was evicted at, in the iteration before
        for _ in range(_MOST_ROUNDS):
            swaps, left = self._iterate(budget_bytes, away)
            if left == away:
                break
            away = left
        return swaps

    def _iterate(self, budget_bytes: int, before: dict[int, int]) -> tuple[list[Swap], dict[int, int]]:
        """Play one iteration, with `before` away when it begins; return the swaps and what is away at its end."""
        count = len(self._trace.ops)
        swaps: list[Swap] = []
        idle = _Idle()
        for index, gap in enumerate(self._gaps):
            if gap.cyclic and index not in before:
                idle.add(index, self._rank(gap, gap.after - count, gap.before))
        away = {index: op - count for index, op in before.items()}
        absent = _Absent()
        for index in away:
            absent.add(self._held[index], self._fetched_at(index, away[index]), 0)
        for op in range(count):
            for index in self._ends[op]:
                idle.discard(index)
                evicted = away.pop(index, None)
                if evicted is not None:
                    swaps.append(self._swap(index, evicted, op))
            absent.come_back(op)
            while self._load[op] - absent.size_bytes > budget_bytes and (victim := idle.pop()) is not None:
                away[victim] = op
                absent.add(self._held[victim], self._fetched_at(victim, op), op)
            for index in self._begins[op]:
                idle.add(index, self._rank(self._gaps[index], op, end_of(self._trace, self._gaps[index])))
        return swaps, away

    def _fetched_at(self, index: int, evicted: int) -> int:
        return min(max(self._prefetch(self._due(index, evicted)), evicted + 1), self._due(index, evicted))

    def _due(self, index: int, evicted: int) -> int:
        """Return the next use after op `evicted`, counted on over the end."""
        before, count = self._gaps[index].before, len(self._trace.ops)
        return evicted + (before - evicted) % count

    def _swap(self, index: int, evicted: int, due: int) -> Swap:
        gap, count = self._gaps[index], len(self._trace.ops)
        # One evicted at op 0 leaves at the end of the iteration before.
        shift = count if evicted <= 0 else 0
        out_after = evicted - 1 + shift
        in_start = max(self._prefetch(due + shift), evicted + 1 + shift)
        in_before = due + shift
        in_start = min(in_start, in_before) if gap.returns else in_before
        return Swap(gap.storage, gap.size_bytes, out_after, evicted + shift, in_start, in_before, in_before >= count,
                    gap.returns)  # fmt: skip

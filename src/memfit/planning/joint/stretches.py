"""What may be away, in stretches: a gap is cut where its storage may have to be there for another's sake.

If a value is made again before op e, the values that its ops read are there then. A gap of one of these that spans e is
cut at e into two stretches. Between them the storage returns, by a copy or by being made again itself, or stays away.

Only the first remakings of a row of them are followed. What is needed further down, or comes out besides, returns at
ops without such a cut, perhaps when more of its inputs are there, or together with others that are cut elsewhere.
Between two cuts one more stands for all of these ops: the last of them, with the ops that run again at the first. Of
these it is known what they want to be there at some of their ops, and for what else they may be (`relations`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from memfit.ir import Trace, align_up
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.joint.recipes import Recipe, may_run, recipe_at_end, recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap

_NOTHING = Recipe((), (), 0.0, ())
"""What runs at the end of a storage that is dropped for good."""
DEPTH = 1
"""How many remakings in a row, each for the next, are followed; beyond, inputs count as being there."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One op at which a gap's storage may return, and how.

    Attributes:
        op: The op before which it returns, counted on over the iteration's end.
        recipe: How it is made again then; None if it cannot be. Without ops: it was dropped for good, and is
            freed.
        needs: The gaps (their numbers) that `recipe` needs not to be away at `op`.
        since: The first op that it stands for, where it stands for several; what runs again at one of these may run for
            others as well.
        wants: Those of the other gaps that `recipe` needs at each op that it stands for, where `needs` has none.
        runs: The ops that may run again for it, at one of the ops that it stands for.
        serves: The ops that may run again and read what the storage holds: if it is made again here, but not for its
            own use, one of them runs again at the same time, or one of `runs` does for something else.
    """

    op: int
    recipe: Recipe | None
    needs: tuple[int, ...]
    since: int | None = None
    wants: tuple[int, ...] = ()
    runs: frozenset[int] = frozenset()
    serves: frozenset[int] = frozenset()

    @property
    def first(self) -> int:
        """The first op that it stands for."""
        return self.op if self.since is None else self.since


@dataclass(frozen=True, slots=True)
class Idle:
    """One gap as the program sees it; `cuts` ascend, and the last one is the gap's end."""

    gap: Gap
    held_bytes: int
    end: int
    cuts: tuple[Cut, ...]


def idle_gaps(
    trace: Trace,
    found: list[Gap],
    values: Values | None = None,
    depth: int = DEPTH,
    *,
    loose: bool = True,
    others: Collection[Gap] = (),
) -> list[Idle]:
    """Return the gaps `found` with the ops at which they are cut.

    Arguments:
        trace: The recorded iteration.
        found: The gaps that may be used.
        values: The trace's values; None if nothing is made again, and then no gap is cut.
        depth: How many remakings in a row are followed.
        loose: Whether there are cuts for those that are not.
        others: Gaps that are not cut themselves, but others' storages may return for their sake.

    Returns:
        For each gap, in the same order, what the program needs of it.
    """
    cuts = _Cutter(trace, found, values, depth).cuts(others, loose=loose) if values else [()] * len(found)
    return [
        Idle(gap, align_up(gap.size_bytes, trace.alignment), end, _with_end(own, end))
        for gap, own in zip(found, cuts, strict=True)
        for end in [end_of(trace, gap)]
    ]


def _with_end(cuts: tuple[Cut, ...], end: int) -> tuple[Cut, ...]:
    return cuts if cuts and cuts[-1].op == end else (*cuts, Cut(end, None, ()))


class _Returning:
    """The ops before which storages may be made again for others' sake, or besides, however long the row.

    Whatever is made again is so because the storage of one of the gaps `made_again` is, at the gap's end.
    """

    def __init__(self, values: Values, made_again: Iterable[Gap]) -> None:
        self.values = values
        self.again = [0] * len(values.trace.ops)  # by op, a bit for each op before which it may run again
        for gap in made_again:
            writer = self._writer(gap)
            if writer is not None:
                self.again[writer] |= 1 << gap.before
        for op in reversed(range(len(self.again))):
            for value in values.written_by(op):
                for maker in self._makers(value):
                    self.again[maker] |= self.again[op]

    def _makers(self, value: int) -> Iterator[int]:
        """Yield the ops that made what a value is made from, if that may be done again."""
        made = self.values.values[value]
        for read in made.reads if made.remakable else ():
            maker = self.values.values[read].writer
            if maker is not None:
                yield maker

    def ops(self, gap: Gap) -> list[int]:
        """Return the ops within the gap before which its storage may be made again, in order."""
        writer = self._writer(gap) if not gap.cyclic else None
        if writer is None:
            return []
        bits = (self.again[writer] >> gap.after + 1) & ((1 << max(gap.before - gap.after - 1, 0)) - 1)
        return [gap.after + 1 + at for at, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]

    def _writer(self, gap: Gap) -> int | None:
        """Return the op that makes the storage as it is in the gap; None if that is none of the iteration's."""
        return self.values.values[self.values.before(gap.storage, gap.before)].writer


class _Cutter:
    """Follows every remaking to the gaps it needs, level by level."""

    def __init__(self, trace: Trace, found: list[Gap], values: Values, depth: int) -> None:
        self.count = len(trace.ops)
        self.found = found
        self.values = values
        self.depth = depth
        self.of_storage: dict[int, list[int]] = defaultdict(list)
        for number in sorted(range(len(found)), key=lambda g: found[g].after):
            self.of_storage[found[number].storage].append(number)
        self.made: dict[tuple[int, int], Cut] = {}
        self.goes: dict[int, bool] = {}

    def cuts(self, others: Collection[Gap], *, loose: bool) -> list[tuple[Cut, ...]]:
        level = [(number, gap.before) for number, gap in enumerate(self.found) if not gap.cyclic]
        for depth in range(self.depth + 1):
            level = sorted(set(self._follow(level, is_last=depth == self.depth)))
        self._join_siblings()
        by_gap: list[list[Cut]] = [[] for _ in self.found]
        for number, _ in sorted(self.made):
            by_gap[number].append(self.made[number, _])
        if loose:
            ending = {number: self.made.get((number, gap.before)) for number, gap in enumerate(self.found)}
            made_again = [self.found[n] for n, cut in ending.items() if cut and cut.recipe and self.found[n].returns]
            returning = _Returning(self.values, [*made_again, *(gap for gap in others if gap.is_inner)])
            for number, own in enumerate(by_gap):
                own += self._loose(number, returning.ops(self.found[number]), sorted(cut.op for cut in own))
            readers = self._readers()
            by_gap = [[self._for_others(number, cut, readers) for cut in own] for number, own in enumerate(by_gap)]
        return [tuple(sorted(own, key=lambda cut: cut.op)) for own in by_gap]

    def _loose(self, number: int, ops: list[int], cuts: list[int]) -> Iterator[Cut]:
        """Yield a cut between any two others that stands for those of `ops` that lie there."""
        for begin, end in pairwise([self.found[number].after, *cuts]):
            between = ops[bisect_right(ops, begin) : bisect_left(ops, end)]
            recipe = self._recipe(number, between[0]) if between else None
            if recipe is not None:
                yield Cut(between[-1], recipe, (), since=between[0])

    def _readers(self) -> dict[int, set[int]]:
        """Return, by value, the ops that read it and may run again."""
        readers: dict[int, set[int]] = defaultdict(set)
        for made in self.values.values:
            if made.writer is not None and made.remakable:
                for read in made.reads:
                    readers[read].add(made.writer)
        return readers

    def _for_others(self, number: int, cut: Cut, readers: dict[int, set[int]]) -> Cut:
        """Return `cut` with what it has to do with others that are made again."""
        if cut.recipe is None or not cut.recipe.ops:
            return cut
        gap = self.found[number]
        value = self.values.before(gap.storage, gap.before)
        wants = () if cut.needs else tuple(self._spanning_all(cut.recipe, cut))
        runs = frozenset(may_run(self.values, value, cut.op))
        return replace(cut, wants=wants, runs=runs, serves=frozenset(readers[value]))

    def _spanning_all(self, recipe: Recipe, cut: Cut) -> Iterator[int]:
        """Yield the gaps that span all ops that `cut` stands for, of what `recipe` reads."""
        for number in self._spanning(recipe, cut.first):
            if not self.found[number].cyclic and cut.op < self.found[number].before:
                yield number

    def _follow(self, level: list[tuple[int, int]], *, is_last: bool) -> Iterator[tuple[int, int]]:
        """Cut each gap of `level` at its op; yield what the remaking there needs, for the next level."""
        for number, op in level:
            if (number, op) in self.made:
                continue
            recipe = self._recipe(number, op)
            needs = () if recipe is None or is_last else tuple(self._spanning(recipe, op))
            self.made[number, op] = Cut(self._counted_on(number, op), recipe, needs)
            yield from ((need, op) for need in needs)

    def _join_siblings(self) -> None:
        """Let what a remaking makes besides return with it: both outputs of an op, for one run."""
        for (number, op), cut in list(self.made.items()):
            for other in self._outputs(cut.recipe, op) if cut.recipe else ():
                joined = self._recipe(other, op) if other != number and (other, op) not in self.made else None
                if joined is not None and set(joined.ops) <= set(cut.recipe.ops if cut.recipe else ()):
                    self.made[other, op] = Cut(self._counted_on(other, op), joined, cut.needs)

    def _outputs(self, recipe: Recipe, op: int) -> Iterator[int]:
        for maker in recipe.ops:
            for value in self.values.written_by(maker):
                if self.values.is_there(value, op):
                    yield from self._gap_at(self.values.values[value].storage, op)

    def _recipe(self, number: int, op: int) -> Recipe | None:
        """Return how the storage of gap `number` is made again before `op`, unless that is before its last use."""
        gap = self.found[number]
        if gap.cyclic or not (gap.returns or self._may_go(number)):
            return None
        if not gap.returns and op == gap.before:
            return _NOTHING
        return recipe_of(self.values, self.values.before(gap.storage, op), op)

    def _may_go(self, number: int) -> bool:
        """Return whether the storage of gap `number` may be dropped for good."""
        if number not in self.goes:
            self.goes[number] = recipe_at_end(self.values, self.found[number]) is not None
        return self.goes[number]

    def _spanning(self, recipe: Recipe, op: int) -> Iterator[int]:
        for value in recipe.needs:
            yield from self._gap_at(self.values.values[value].storage, op)

    def _gap_at(self, storage: int, op: int) -> Iterator[int]:
        """Yield the gap of `storage` that spans `op`, if one does: neither end is an op that uses it."""
        own = self.of_storage.get(storage)
        if not own:
            return
        at = bisect_left(own, op, key=lambda number: self.found[number].after)
        gap = self.found[own[at - 1]]  # at 0 the last one, which alone may reach over the iteration's end
        if (gap.cyclic or op < gap.before) if at else (gap.cyclic and op < gap.before):
            yield own[at - 1]

    def _counted_on(self, number: int, op: int) -> int:
        gap = self.found[number]
        return op + self.count * (gap.cyclic and op <= gap.before)

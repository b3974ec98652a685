"""When chosen gaps' storages are made again, and by which ops: a remaking's inputs are there, or made first.

What the ops of a remaking write besides returns with it, if it is away and does not pass. What no op uses any more is
made again only if another is made from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from memfit.ir import Recompute
from memfit.planning.joint.recipes import recipe_at_end, recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap


@dataclass(frozen=True, slots=True)
class Remaking:
    """The ops that run again right before op `before`, in order, and the storages that get their values from them."""

    before: int
    ops: tuple[int, ...]
    storages: tuple[int, ...]


def remakings(recomputes: Iterable[Recompute]) -> list[Remaking]:
    """Return what runs again, by the op before which it does."""
    ordered = sorted((one for one in recomputes if one.returns), key=lambda one: one.before)
    found = []
    for before, together in groupby(ordered, key=lambda one: one.before):
        own = list(together)
        ops = sorted({op for one in own for op in one.ops})
        found.append(Remaking(before, tuple(ops), tuple(sorted(one.storage for one in own))))
    return found


def arrange(values: Values, chosen: Iterable[Gap], passing: Collection[Gap] = ()) -> list[Recompute]:
    """Find when each chosen storage is made again: right before its next use, or before the first that is made from it.

    Arguments:
        values: The values of the trace.
        chosen: The gaps in which storages are to be dropped.
        passing: Those of them whose storages do not stay when another is made from them before their next use: they
            are made on the way, freed, and made again.

    Returns:
        The absences, in the order in which they end. A gap is left out if its storage cannot be made again when it is
        needed.
    """
    wanted = set(chosen)
    while True:
        arranged = _Arranging(values, wanted, wanted & set(passing))
        if arranged.lost is None:
            return arranged.found
        wanted.discard(arranged.lost)


def added_us(values: Values, recomputes: Sequence[Recompute]) -> float:
    """Return the microseconds of what runs again."""
    return sum(values.again_us[op] for made in remakings(recomputes) for op in made.ops)


class _Arranging:
    """Goes through the gaps' ends in order. `lost` is a gap that has to be left out: begin anew without it."""

    def __init__(self, values: Values, chosen: set[Gap], passing: set[Gap]) -> None:
        self.values = values
        self.passing = sorted(passing, key=lambda gap: (gap.after, gap.storage))
        self.found: list[Recompute] = []
        self.lost: Gap | None = None
        self.returned: set[Gap] = set()
        self.of_storage: dict[int, list[Gap]] = defaultdict(list)
        for gap in chosen:
            self.of_storage[gap.storage].append(gap)
        ordered = sorted(chosen, key=lambda gap: (gap.before, gap.storage))
        for op, ending in groupby(ordered, key=lambda gap: gap.before):
            together = list(ending)
            self._remake_all([gap for gap in together if gap.returns and gap not in self.returned], op)
            self._drop_for_good([gap for gap in together if not gap.returns and gap not in self.returned])

    def _drop_for_good(self, ending: list[Gap]) -> None:
        """Leave away what nothing has asked for, as long as it can be made again until it is freed."""
        for gap in ending:
            recipe = recipe_at_end(self.values, gap)
            if recipe is None:
                self.lost = self.lost or gap
            else:
                self.found.append(Recompute(gap.storage, gap.after, gap.before, recipe.ops, returns=False))

    def _remake_all(self, ending: list[Gap], op: int) -> None:
        """Make what is needed before `op` again, and keep what that makes besides."""
        first = len(self.found)
        for gap in ending:
            if self.lost is None and gap not in self.returned:
                self._remake(gap, op)
        ops = sorted({p for one in self.found[first:] for p in one.ops})
        for gap in [gap for p in ops for gap in self._made_besides(p, op)]:
            if self.lost is None and gap not in self.returned:
                self._remake(gap, op)

    def _made_besides(self, maker: int, op: int) -> Iterator[Gap]:
        """Yield the gaps that may end before `op` since `maker` makes what their storages hold then."""
        for storage in self.values.operands(maker)[1]:
            value = self.values.before(storage, op)
            if self.values.values[value].writer == maker and self.values.is_there(value, op):
                away = (gap for gap in self._away(storage, op) if gap.returns or op < gap.before)
                yield from (gap for gap in away if gap not in self.passing)

    def _away(self, storage: int, op: int) -> Iterator[Gap]:
        return (gap for gap in self.of_storage.get(storage, ()) if gap.after < op <= gap.before)

    def _remake(self, gap: Gap, op: int) -> None:
        """Make the storage of `gap` again before `op`, after what it is made from; chains may be long."""
        begun = [self._begin(gap, op)]
        while begun and self.lost is None:
            current, ops, parents = begun[-1]
            parent = next((each for each in parents if each not in self.returned), None)
            if parent is not None:
                begun.append(self._begin(parent, op))
            else:
                self.found.append(Recompute(current.storage, current.after, op, ops))
                begun.pop()

    def _begin(self, gap: Gap, op: int) -> tuple[Gap, tuple[int, ...], Iterator[Gap]]:
        """Return `gap` with the ops to run, and the gaps that end because it is made from their storages."""
        away = {self.values.before(each.storage, op) for each in self.passing if each.after < op < each.before}
        recipe = recipe_of(self.values, self.values.before(gap.storage, op), op, away=away)
        if recipe is None or gap.cyclic:
            self.lost = gap
            return gap, (), iter(())
        self.returned.add(gap)
        return gap, recipe.ops, self._parents(recipe.needs, op)

    def _parents(self, needs: Iterable[int], op: int) -> Iterator[Gap]:
        for need in needs:
            yield from self._away(self.values.values[need].storage, op)

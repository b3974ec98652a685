"""From the parts of a linear program's solution to whole choices: rounded, repaired where memory lacks, and pruned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memfit.ir import Recompute, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.program import Moves, TimeBound
from memfit.planning.joint.recipes import remaking_us
from memfit.planning.joint.transformed import Transformed, with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap
from memfit.simulate import add_span, load_bytes

_ROUNDS = 40
_NEVER = 1e9
"""How much dearer copies are where no swap may be chosen."""


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


class Rounding:
    """Rounds the solution of a bound to whole gaps that keep to its budget, if there are enough.

    Where memory lacks at an op, of what was made again early the largest is dropped again until its own use; otherwise
    the gap of the least price there is used too. What fits beside the rest is left out in the end.
    """

    def __init__(self, values: Values, machine: Machine, bound: TimeBound) -> None:
        self.values = values
        self.budget = bound.budget_bytes
        may_swap = bound.moves is not Moves.RECOMPUTE
        self.us = {share.gap: remaking_us(values, share.gap) for share in bound.shares}
        self.shares = {s.gap: s for s in bound.shares if may_swap or self.us[s.gap] is not None}
        dearer = 1.0 if may_swap else _NEVER
        self.copy_us = {
            gap: dearer * (machine.out.copy_us(gap.size_bytes) + machine.into.copy_us(gap.size_bytes))
            for gap in self.shares
        }

    def rounded(self, threshold: float) -> Choice:
        """Return the choice that uses each gap of at least this share, for what it has more of."""
        used = [share for share in self.shares.values() if share.swap + share.recompute >= threshold]
        remade = {share.gap for share in used if share.recompute > share.swap}
        return self.settled(remade, {share.gap for share in used} - remade)

    def settled(self, remade: Iterable[Gap], swapped: Iterable[Gap]) -> Choice:
        """Return a choice of these gaps, repaired and pruned."""
        state = _State(self, set(remade), set(swapped))
        for _ in range(_ROUNDS):
            if not state.repair():
                break
        state.prune()
        return Choice(frozenset(state.remade), frozenset(state.passing), frozenset(state.swapped))

    def held_bytes(self, gap: Gap) -> int:
        """Return the bytes that the storage of `gap` takes in the arena."""
        return align_up(gap.size_bytes, self.values.trace.alignment)

    def price(self, gap: Gap) -> float:
        """Return what a byte costs; the more the program used of it, the less."""
        us = self.us[gap]
        least = self.copy_us[gap] if us is None else min(us, self.copy_us[gap])
        return least * max(self.shares[gap].keep, 0.01) / gap.size_bytes


class _State:
    """A choice in the making, and the bytes that each op of its trace leaves."""

    def __init__(self, rounding: Rounding, remade: set[Gap], swapped: set[Gap]) -> None:
        self.rounding = rounding
        self.remade, self.swapped = remade, swapped
        self.passing: set[Gap] = set()
        self.by_price = sorted(rounding.shares, key=rounding.price)
        self._arrange()

    def _arrange(self) -> None:
        values = self.rounding.values
        self.arranged = arrange(values, self.remade, self.passing)
        self.made: Transformed = with_recomputes(values, self.arranged)
        originals = np.flatnonzero(~np.array(self.made.runs_again, dtype=bool))
        self.place = originals.tolist()
        self.held = load_bytes(self.made.trace)
        for gap in self.swapped:
            self._take(gap, -1)

    def _take(self, gap: Gap, sign: int) -> None:
        add_span(self.held, *self._span(gap), sign * self.rounding.held_bytes(gap))

    def _span(self, gap: Gap) -> tuple[int, int]:
        """Return the ops of the trace with remakings at which the storage is away."""
        count = len(self.rounding.values.trace.ops)
        end = end_of(self.rounding.values.trace, gap)
        return self.place[gap.after] + 1, self.place[end % count] + len(self.held) * (end // count)

    def repair(self) -> bool:
        """Use more gaps until every op fits; return whether to look again, since remakings have changed."""
        while self.held.max() > self.rounding.budget:
            worst = int(self.held.argmax())
            early = self._early(worst)
            if early is not None:
                self.passing.add(early)
                self._arrange()
                return True
            gap = self._unused(worst)
            if gap is None:
                return False
            if self._is_cheaper_remade(gap):
                self.remade.add(gap)
                self._arrange()
                return True
            self.swapped.add(gap)
            self._take(gap, -1)
        return False

    def _early(self, worst: int) -> Gap | None:
        """Return the largest of the gaps whose storages were made before their own use, and are there at `worst`."""
        by_start = {(gap.storage, gap.after): gap for gap in self.remade}
        there = [
            gap
            for one in self.arranged
            if (gap := by_start[one.storage, one.after]).before > one.before
            and self.place[one.before - 1] < worst < self.place[gap.before]
        ]
        return max(there, key=lambda gap: (gap.size_bytes, -gap.storage), default=None)

    def _unused(self, worst: int) -> Gap | None:
        """Return the gap of the least price that would be away at `worst`."""
        unused = (gap for gap in self.by_price if gap not in self.remade and gap not in self.swapped)
        return next((gap for gap in unused if self._spans(gap, worst)), None)

    def _spans(self, gap: Gap, op: int) -> bool:
        begin, end = self._span(gap)
        return begin <= op < end or begin <= op + len(self.held) < end

    def _is_cheaper_remade(self, gap: Gap) -> bool:
        us, share = self.rounding.us[gap], self.rounding.shares[gap]
        return us is not None and us < self.rounding.copy_us[gap] and share.recompute >= share.swap

    def prune(self) -> None:
        """Leave out what fits beside the rest: first swaps that were rounded up most, then the dearest remakings."""
        rounding = self.rounding
        least = sorted(self.swapped, key=lambda gap: rounding.shares[gap].swap * rounding.copy_us[gap])
        for gap in [*least, *sorted(self.remade, key=lambda gap: -(rounding.us[gap] or 0.0))]:
            if self._most(gap) + rounding.held_bytes(gap) <= rounding.budget:
                (self.remade if gap in self.remade else self.swapped).discard(gap)
                self.passing.discard(gap)
                self._take(gap, 1)

    def _most(self, gap: Gap) -> int:
        """Return the most that an op of the original trace holds while the storage is away; others may not run then."""
        begin, end = gap.after + 1, end_of(self.rounding.values.trace, gap)
        count = len(self.place)
        return max(int(self.held[self.place[op % count]]) for op in range(begin, end))

"""Capuchin (Peng et al., ASPLOS 2020), whole: swaps that hide, then the cheaper of a swap and a recomputation.

Section 4.4: gaps are swapped by free time, where both copies hide: one copy at a time has the link each way, and the
bytes have to be gone while memory lacks. For what is still missing, candidates are taken by memory saving per second
(MSPS): bytes divided by the cheaper of the time that the swap is waited for and the time of recomputation. When one is
to be recomputed, those made from it cost its time too. The measured run, with its feedback on late swap-ins, is the
simulator's. The original's first iteration, which evicts on demand to be able to measure, is not needed here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from memfit.baselines.policies.capuchin import fed_back, free_us
from memfit.baselines.policies.policy import Times, all_gaps, plan_that_waits_for_room
from memfit.baselines.recomputing.drops import Droppable, Droppables, Drops, counts, gaps_within
from memfit.baselines.recomputing.lane import Lanes
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.planning.lifetimes import Gap
from memfit.simulate import add_span, load_bytes, planned_bytes

_ROUNDS = 4


def capuchin_whole(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan of swaps and remakings after some runs of feedback; raises BudgetError if it does not fit."""
    drops = Droppables(trace)
    picking = _Picking(drops, machine, budget_bytes)
    best: _Carried | None = None
    for more in counts(len(picking.spare)):
        tried = _collective(drops, machine, picking.picks + picking.spare[:more], budget_bytes)
        if best is None or tried.held_bytes < best.held_bytes:
            best = tried
        if best.held_bytes <= budget_bytes:
            break
    assert best is not None
    swaps = fed_back(best.found.made.trace, machine, budget_bytes, best.swaps)
    return mixed(
        "capuchin-whole",
        trace,
        machine,
        budget_bytes,
        best.found.recomputes,
        best.found.made,
        swaps,
        plan_that_waits_for_room,
    )


@dataclass(frozen=True, slots=True)
class _Pick:
    """A gap to use; by recomputation if it has one, otherwise by a swap, which hides or is waited for."""

    gap: Gap
    remade: Droppable | None = None
    hides: bool = False


@dataclass(frozen=True, slots=True)
class _Carried:
    """The trace with remakings, and the swaps on it."""

    found: Drops
    swaps: list[Swap]

    @property
    def held_bytes(self) -> int:
        """The most bytes that an op sees."""
        return int(planned_bytes(self.found.made.trace, self.swaps).max())


def _collective(drops: Droppables, machine: Machine, picks: list[_Pick], budget_bytes: int) -> _Carried:
    """Carry out `picks`; what is made again on the way to another stays only where memory is enough (section 5.3)."""
    remade = {(pick.gap.storage, pick.gap.after): pick.remade for pick in picks if pick.remade is not None}
    passing: set[Droppable] = set()
    for _ in range(_ROUNDS):
        found = drops.carried_out(remade.values(), passing)
        carried = _Carried(found, _swaps(drops, machine, found, picks))
        over = np.flatnonzero(planned_bytes(found.made.trace, carried.swaps) > budget_bytes)
        full = {found.made.op_of[op] for op in over if not found.made.runs_again[op]}
        early = {
            each
            for one in found.recomputes
            if (each := remade[one.storage, one.after]).gap.before > one.before
            and any(one.before <= op < each.gap.before for op in full)
        }
        if early <= passing:
            break
        passing |= early
    return carried


def _swaps(drops: Droppables, machine: Machine, found: Drops, picks: list[_Pick]) -> list[Swap]:
    """Return the swaps of `picks` on the trace with their remakings.

    A hidden one that is used by a remaking is in parts there, of which those stay that hide.
    """
    made, swaps = found.made.trace, []
    lanes = Lanes(made, machine, Times.of(made))
    for hides in (True, False):
        chosen = [pick.gap for pick in picks if pick.remade is None and pick.hides == hides]
        gaps = gaps_within(found.made, chosen, len(drops.trace.ops) - 1)
        for gap in sorted(gaps, key=lambda gap: (-free_us(made, machine, lanes.times, gap), gap.storage, gap.after)):
            swap = lanes.hidden(gap)
            if swap is not None:
                lanes.take(gap)
                swaps.append(swap)
            elif not hides:
                swaps.append(swap_of(made, gap, gap.after + 1, end_of(made, gap)))
    return swaps


class _Picking:
    """The order in which gaps are used: `hidden` swaps by free time, then others by memory saving per second.

    `spare` are those that are away only where, by the picks before, memory does not lack any more.
    """

    def __init__(self, drops: Droppables, machine: Machine, budget_bytes: int) -> None:
        self.trace, self.machine = drops.trace, machine
        self.budget_bytes, self.held = budget_bytes, load_bytes(drops.trace)
        self.over = self.held > budget_bytes
        self.lanes = Lanes(drops.trace, machine, Times.of(drops.trace))
        self.picks: list[_Pick] = []
        self.spare: list[_Pick] = []
        free = {gap: free_us(self.trace, machine, self.lanes.times, gap) for gap in all_gaps(self.trace)}
        others = [
            gap for gap in sorted(free, key=lambda gap: (-free[gap], gap.storage, gap.after)) if not self._hides(gap)
        ]
        self.waited_us = {gap: self.lanes.waited_us(gap) for gap in others}
        self.hidden = len(self.picks)
        self.by_gap = {each.gap: each for each in drops.all if each.gap in self.waited_us}
        self.us = {gap: each.us for gap, each in self.by_gap.items()}
        self.made_from: dict[int, list[Gap]] = defaultdict(list)
        for gap, each in self.by_gap.items():
            for need in each.needs:
                self.made_from[need].append(gap)
        self._pick_the_rest()

    def _hides(self, gap: Gap) -> bool:
        """Pick the swap of `gap` if both its copies find time on the link, and memory lacks between them."""
        swap = self.lanes.hidden(gap)
        if swap is None or not self._lacks(gap, swap.free_by, swap.in_start):
            return False
        self.lanes.take(gap)
        self.picks.append(_Pick(gap, hides=True))
        return True

    def _lacks(self, gap: Gap, begin: int, end: int) -> bool:
        """Take the bytes of `gap` off these ops if one of them is over the budget; return whether one is."""
        away = np.zeros_like(self.held)
        add_span(away, begin, end, align_up(gap.size_bytes, self.trace.alignment))
        if not away[self.held > self.budget_bytes].any():
            return False
        self.held -= away
        return True

    def _pick_the_rest(self) -> None:
        """Take the gap of the most bytes a microsecond again and again; prices only rise, and are looked up anew."""
        heap = [(self._price(gap), gap.storage, gap.after, gap) for gap in self.waited_us]
        heapify(heap)
        while heap:
            price, storage, after, gap = heappop(heap)
            if price < (now := self._price(gap)):
                heappush(heap, (now, storage, after, gap))
            else:
                self._pick(gap)

    def _price(self, gap: Gap) -> float:
        """Return the microseconds that a byte costs: one part of MSPS turned over."""
        return min(self.us.get(gap, float("inf")), self.waited_us[gap]) / gap.size_bytes

    def _pick(self, gap: Gap) -> None:
        us = self.us.get(gap, float("inf"))
        pick = _Pick(gap) if us >= self.waited_us[gap] else _Pick(gap, self.by_gap[gap])
        if not self._lacks(gap, gap.after + 1, end_of(self.trace, gap)):
            self.spare.append(pick)
            return
        self.picks.append(pick)
        if pick.remade is not None:
            self._raise_prices(pick.remade)

    def _raise_prices(self, remade: Droppable) -> None:
        """Let those that are made from it, while it is away, cost its time too."""
        for other in self.made_from[remade.value]:
            if other.after < remade.gap.before and remade.gap.after < other.before <= remade.gap.before:
                self.us[other] += self.us[remade.gap]

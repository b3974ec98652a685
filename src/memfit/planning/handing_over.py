"""In-place reuse: an op's output takes the place of an input that is not needed any more.

The engine has tried for which ops and inputs the output comes out the same there (`Trace.handovers`). Here those are
chosen that a plan makes use of. In the trace with them the input is freed right before the output is allocated, so
that the two never count together; where they lie, the output has the input's address (`stays.Stays.over`). The engine
can make the input again should it be needed after all, so what it is made from has to be there while the op runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import BEFORE_FIRST_TICK, Handover, Trace
from memfit.planning.joint.again import corrected
from memfit.planning.joint.recipes import Recipe, recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import largest_small
from memfit.planning.packing import NOBODY, Lifetimes, joined, lifetimes_of
from memfit.simulate import load_bytes

_MOST_OPS = 4
"""The most ops that have to run to make an input again."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A trace in which inputs hand over their places, and the ops whose calls the engine has to keep for that.

    The handovers of `trace` are those that happen.
    """

    trace: Trace
    kept: tuple[int, ...] = ()


def hand_over(trace: Trace, limit_bytes: int, never: Collection[int] = ()) -> HandedOver:
    """Choose handovers where the iteration needs more than a limit.

    Arguments:
        trace: The recorded iteration, with the handovers that were tried.
        limit_bytes: Only ops that need more when nothing leaves make use of one.
        never: The storages that cannot be made again.

    Returns:
        The trace with those that are chosen, or `trace` without handovers where there are none.
    """
    choice = _Choice(trace, limit_bytes, never)
    for each in trace.handovers:
        choice.consider(each)
    chosen = choice.chosen()
    kept = {op for each, recipe in chosen for op in (each.op, *recipe.ops)}
    return HandedOver(with_handovers(trace, [each for each, _ in chosen]), tuple(sorted(kept)))


def hand_over_everywhere(trace: Trace) -> Trace:
    """Return `trace` with every input that dies handing over its place, whether or not it could be made again."""
    chosen: dict[int, Handover] = {}
    takers: set[int] = set()
    for each in trace.handovers:
        if each.giver not in chosen and each.taker not in takers and _may_happen(trace, each):
            chosen[each.giver] = each
            takers.add(each.taker)
    return with_handovers(trace, chosen.values())


class _Choice:
    """The best way for each output: the input that takes the fewest ops to make again."""

    def __init__(self, trace: Trace, limit_bytes: int, never: Collection[int]) -> None:
        self.trace, self.least_bytes = trace, largest_small(limit_bytes) + 1
        self.over = load_bytes(trace) > limit_bytes
        self.values = Values.of(corrected(trace), never=never) if trace.handovers and self.over.any() else None
        self.best: dict[int, tuple[Handover, Recipe]] = {}

    def consider(self, each: Handover) -> None:
        """Note a handover if it is of use, and the best one of its output so far."""
        size_bytes = self.trace.storages[each.giver].size_bytes
        if self.values is None or not self.over[each.op] or size_bytes < self.least_bytes:
            return
        if not _may_happen(self.trace, each):
            return
        value = self.values.before(each.giver, each.op)
        recipe = recipe_of(self.values, value, each.op, _MOST_OPS, away=(value,))
        if recipe is None:
            return
        known = self.best.get(each.taker)
        if known is None or recipe.us < known[1].us:
            self.best[each.taker] = each, recipe

    def chosen(self) -> list[tuple[Handover, Recipe]]:
        """Return them in the order of their ops; nobody gives twice."""
        by_giver = {each.giver: (each, recipe) for each, recipe in reversed(self.best.values())}
        return sorted(by_giver.values(), key=lambda one: one[0].op)


def _may_happen(trace: Trace, each: Handover) -> bool:
    """Return whether the giver is of this iteration, and dies at the op after its taker was made."""
    giver, taker = trace.storages[each.giver], trace.storages[each.taker]
    dies = (
        giver.pinned_from is None and not giver.born_before and not trace.outlives(giver) and giver.free <= each.op + 1
    )
    return dies and taker.alloc_tick < giver.free_tick and not trace.outlives(taker)


def with_handovers(trace: Trace, handovers: Iterable[Handover]) -> Trace:
    """Return `trace` with these handovers, and no others.

    Each giver is freed right before its taker is allocated; all other events keep their order.
    """
    handovers = tuple(handovers)
    earlier = {trace.storages[each.giver].free_tick: trace.storages[each.taker].alloc_tick for each in handovers}
    if not earlier:
        return replace(trace, handovers=())
    order = sorted(range(trace.ticks), key=lambda tick: (earlier[tick], 0) if tick in earlier else (tick, 1))
    place = {tick: number for number, tick in enumerate(order)}
    place[BEFORE_FIRST_TICK], place[trace.ticks] = BEFORE_FIRST_TICK, trace.ticks
    storages = tuple(replace(s, alloc_tick=place[s.alloc_tick], free_tick=place[s.free_tick]) for s in trace.storages)
    return replace(trace, storages=storages, handovers=handovers)


def without_handovers(trace: Trace) -> Trace:
    """Return `trace` with every storage that gave its place living on until right after the other was allocated."""
    storages = list(trace.storages)
    for taker, giver in in_effect(trace).items():
        gave, took = storages[giver], storages[taker]
        storages[giver] = replace(gave, free_tick=took.alloc_tick)
        storages[taker] = replace(took, alloc_tick=gave.free_tick)
    return replace(trace, storages=tuple(storages), handovers=())


def in_effect(trace: Trace) -> dict[int, int]:
    """Return, by each storage that takes the place of another in `trace`, that other one."""
    storages = trace.storages
    return {
        each.taker: each.giver
        for each in trace.handovers
        if storages[each.giver].free_tick + 1 == storages[each.taker].alloc_tick
    }


def one_row_each(trace: Trace) -> tuple[Lifetimes, Int64Array]:
    """Return the lifetimes in ticks of which storages that hand over their places are one, and each storage's row."""
    over = np.full(len(trace.storages), NOBODY)
    for taker, giver in in_effect(trace).items():
        over[taker] = giver
    return joined(lifetimes_of(trace), over)

"""In-place reuse: an op's output takes the place of an input that is not needed any more.

The engine has tried for which ops and inputs the output comes out the same there (`Trace.handovers`). Here those are
chosen that a plan makes use of. In the trace with them the input is freed right before the output is allocated, so
that the two never count together; where they lie, the output has the input's address (`stays.Stays.over`). The engine
can make the input again should it be needed after all, so what it is made from has to be there while the op runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from memfit.ir import BEFORE_FIRST_TICK, Handover, Storage, Trace, align_up
from memfit.planning.joint.again import corrected
from memfit.planning.joint.recipes import Recipe, recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import largest_small
from memfit.simulate import load_bytes

_MOST_OPS = 4
"""The most ops that have to run to make an input again: more than the engine follows through storages that are gone."""


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
    moved = replace(with_handovers(trace, [each for each, _ in chosen]), handovers=tuple(each for each, _ in chosen))
    kept = {op for each, recipe in chosen for op in (each.op, *recipe.ops)}
    return HandedOver(moved, tuple(sorted(kept)))


class _Choice:
    """The best way for each output: the input that takes the fewest ops to make again."""

    def __init__(self, trace: Trace, limit_bytes: int, never: Collection[int]) -> None:
        self.trace, self.least_bytes = trace, largest_small(limit_bytes) + 1
        self.over = load_bytes(trace) > limit_bytes
        self.values = Values.of(corrected(trace), never=never) if trace.handovers and self.over.any() else None
        self.best: dict[int, tuple[Handover, Recipe]] = {}

    def consider(self, each: Handover) -> None:
        """Note a handover if it is of use, and the best one of its output so far."""
        giver, taker = self.trace.storages[each.giver], self.trace.storages[each.taker]
        if self.values is None or not self.over[each.op] or giver.size_bytes < self.least_bytes:
            return
        if not _dies_at(self.trace, giver, each.op) or self.trace.outlives(taker) or giver.free_tick < taker.alloc_tick:
            return
        value = self.values.before(each.giver, each.op)
        recipe = recipe_of(self.values, value, each.op, _MOST_OPS, away=(value,))
        if recipe is None or any(self.values.values[need].storage == each.giver for need in recipe.needs):
            return
        known = self.best.get(each.taker)
        if known is None or recipe.us < known[1].us:
            self.best[each.taker] = each, recipe

    def chosen(self) -> list[tuple[Handover, Recipe]]:
        """Return them in the order of their ops; nobody gives twice."""
        by_giver = {each.giver: (each, recipe) for each, recipe in reversed(self.best.values())}
        return sorted(by_giver.values(), key=lambda one: one[0].op)


def _dies_at(trace: Trace, storage: Storage, op: int) -> bool:
    return not storage.born_before and not trace.outlives(storage) and storage.free <= op + 1


def with_handovers(trace: Trace, handovers: Iterable[Handover]) -> Trace:
    """Return `trace` with each giver freed right before its taker is allocated; all other events keep their order."""
    earlier = {trace.storages[each.giver].free_tick: trace.storages[each.taker].alloc_tick for each in handovers}
    if not earlier:
        return trace
    first = sorted((until, tick) for tick, until in earlier.items())
    order = [tick for tick in range(trace.ticks) if tick not in earlier]
    keys = sorted([(tick, 1, tick) for tick in order] + [(until, 0, tick) for until, tick in first])
    place = {tick: number for number, (_, _, tick) in enumerate(keys)}
    place[BEFORE_FIRST_TICK], place[trace.ticks] = BEFORE_FIRST_TICK, trace.ticks
    storages = tuple(replace(s, alloc_tick=place[s.alloc_tick], free_tick=place[s.free_tick]) for s in trace.storages)
    return replace(trace, storages=storages)


def in_effect(trace: Trace) -> dict[int, int]:
    """Return, by each storage that takes the place of another in `trace`, that other one."""
    storages = trace.storages
    return {
        each.taker: each.giver
        for each in trace.handovers
        if storages[each.giver].free_tick + 1 == storages[each.taker].alloc_tick
    }


def saved_bytes(trace: Trace) -> int:
    """Return the bytes (aligned) that the handovers in effect save, one after the other."""
    return sum(align_up(trace.storages[taker].size_bytes, trace.alignment) for taker in in_effect(trace))

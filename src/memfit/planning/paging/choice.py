"""The choice of what to map: as little as makes every op fit the budget, and inputs before what an op allocates.

(An op that goes over its operands again and again maps more, until frames have room for half of it: few frames would be
filled anew at every step.)

An op fits once all that may be away is away, and what is left, with its page frames, is no more than the budget. The
largest storages are mapped first, so that there are few. An input is mapped in that op alone; what an op allocates is
never in the arena afterwards, and every op that uses it maps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Map, Trace, accessing_ops, align_up
from memfit.planning.autoswap.search import least_held
from memfit.planning.lifetimes import births, largest_small, leaves_uninitialised
from memfit.planning.paging.classes import AccessClass, access_class
from memfit.planning.paging.mapped import with_maps

_LEAST_MAPPED = 16 << 10  # smaller storages find room
_LEAST_FRAMES = 32 * 4096  # several threads touch several operands at once
_LEAST_BUDGET = 8 * _LEAST_FRAMES  # below it frames would take too large a part
_ENOUGH_OF = 2  # what is swept, by what frames have room for: more is mapped until there are so many
_SHARE = 16  # the budget, by what frames take of it
SHARE_FOR_HOLES = 16
"""The budget, by what is to be left free for holes between addresses where there are maps."""
_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Frames:
    """The bytes of the arena through which an op sees what it maps.

    Attributes:
        least_bytes: What any op needs. One that goes over its operands again and again gets what is left, too.
    """

    least_bytes: int

    @classmethod
    def within(cls, budget_bytes: int, alignment: int) -> Frames:
        """Return those of a tier that ops cannot read: a file."""
        return cls(align_up(max(budget_bytes // _SHARE, _LEAST_FRAMES), alignment))

    @classmethod
    def none(cls) -> Frames:
        """Return those of a tier in memory, which ops read as it is."""
        return cls(0)


def choose_maps(trace: Trace, budget_bytes: int, frames: Frames) -> tuple[Map, ...]:
    """Choose what to map so that plans can meet a budget.

    Arguments:
        trace: The recorded iteration.
        budget_bytes: The budget, pinned bytes included.
        frames: The frames that the tier needs.

    Returns:
        The maps, by op; none if plans meet the budget without, or if no maps help.
    """
    if frames.least_bytes and budget_bytes < _LEAST_BUDGET:
        return ()
    choice = _Choice(trace, budget_bytes, frames)
    for _ in range(_ROUNDS):
        maps = choice.maps()
        held = least_held(with_maps(trace, maps))
        tight = np.flatnonzero(held > budget_bytes).tolist()
        if tight:
            if not any([choice.add(op, int(held[op])) for op in tight]):
                return ()
        elif not any([choice.add_to_frames(each) for each in choice.with_frames(maps, held)]):
            return choice.with_frames(maps, held)
    return ()


class _Choice:
    """What is mapped so far, by op."""

    def __init__(self, trace: Trace, budget_bytes: int, frames: Frames) -> None:
        self._trace, self._budget_bytes, self._frames = trace, budget_bytes, frames
        self._born, self._uses = births(trace), accessing_ops(trace)
        self._least = max(_LEAST_MAPPED, largest_small(budget_bytes) + 1)
        self._mapped: dict[int, set[int]] = {}
        self._made: dict[int, list[int]] = {}
        for storage, op in self._born.items():
            self._made.setdefault(op, []).append(storage)

    def maps(self) -> tuple[Map, ...]:
        least = self._frames.least_bytes
        return tuple(Map(op, tuple(sorted(self._mapped[op])), least) for op in sorted(self._mapped))

    def with_frames(self, maps: Iterable[Map], held: Int64Array) -> tuple[Map, ...]:
        """Give what is left of the budget to ops that go over their operands again and again."""
        return tuple(Map(each.op, each.storages, self._frames_of(each, int(held[each.op]))) for each in maps)

    def _frames_of(self, its: Map, held_bytes: int) -> int:
        if not self._sweeps(its):
            return its.frame_bytes
        spare = (self._budget_bytes - held_bytes) // self._trace.alignment * self._trace.alignment
        whole = sum(self._held(storage) for storage in its.storages)
        return min(its.frame_bytes + spare, max(whole, its.frame_bytes))

    def add(self, op: int, held_bytes: int) -> bool:
        """Map more of what an op uses, as much as seems to do; return whether there was any."""
        found = False
        for storage in self._candidates(op):
            if held_bytes <= self._budget_bytes:
                break
            if not self._mapped.get(op):
                held_bytes += self._frames.least_bytes
            self._map(storage, op)
            held_bytes -= self._held(storage)
            found = True
        return found

    def add_to_frames(self, its: Map) -> bool:
        """Map one more of what an op sweeps if frames have room for little of it; return whether there was any."""
        mapped_bytes = sum(self._held(storage) for storage in its.storages)
        if not self._sweeps(its) or _ENOUGH_OF * its.frame_bytes >= mapped_bytes:
            return False
        found = self._candidates(its.op)[:1]
        for storage in found:
            self._map(storage, its.op)
        return bool(found)

    def _sweeps(self, its: Map) -> bool:
        """Whether the op sees what it maps through frames, and goes over it again and again."""
        return its.frame_bytes > 0 and access_class(self._trace.ops[its.op].name) is AccessClass.SWEEPS

    def _map(self, storage: int, op: int) -> None:
        ops = {op, *self._uses[storage]} if self._born.get(storage) == op else {op}
        for each in ops:
            self._mapped.setdefault(each, set()).add(storage)

    def _candidates(self, op: int) -> list[int]:
        """Return what the op may map, inputs first, and the largest of them."""
        its, mapped = self._trace.ops[op], self._mapped.get(op, set())
        inputs = [s for s in {*its.reads, *its.writes} - mapped if self._may_be_away(s, op)]
        free = (s for s in self._made.get(op, ()) if self._trace.storages[s].pinned_from is None)
        made = [] if leaves_uninitialised(its.name) else [s for s in free if s not in mapped]
        return [
            *sorted((s for s in inputs if self._is_large(s)), key=lambda s: (-self._held(s), s)),
            *sorted((s for s in made if self._is_large(s)), key=lambda s: (-self._held(s), s)),
        ]

    def _may_be_away(self, storage: int, op: int) -> bool:
        """Whether it can have left before the op: it was used, or made, in the iteration until then, or recurs."""
        one = self._trace.storages[storage]
        if self._born.get(storage) == op or one.pinned_from is not None:
            return False
        return self._trace.recurs(one) or self._uses[storage][0] < op or self._born.get(storage, op) < op

    def _is_large(self, storage: int) -> bool:
        return self._trace.storages[storage].size_bytes >= self._least

    def _held(self, storage: int) -> int:
        return align_up(self._trace.storages[storage].size_bytes, self._trace.alignment)

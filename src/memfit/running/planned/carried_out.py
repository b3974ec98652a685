"""A recorded iteration with its remakings in it: ops that run again are ops, and each stay of a storage is a block.

The engine follows the ops of such an iteration. The allocations and frees of the two recorded iterations stay in their
order; those of the ops that run again come in between, and dropped storages are freed where they are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from memfit.ir import Handover, Map, Recompute, Transformed
from memfit.planning.addresses import TwoIterations
from memfit.planning.joint.transformed import ticks_of
from memfit.running.planned.recorded import Recorded

_Row = tuple[int, int, int, int]
"""A block, the bytes of its allocation (negative: it is freed), the ops begun before, and `TwoIterations.again`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """One storage's absence, by the ops of the iteration with remakings.

    Attributes:
        storage: The stay that ends, a storage of that iteration.
        after: Its bytes go when this op has ended.
        before: They are there again when this op begins, or would be.
        original: The storage of the recorded iteration.
        back: The stay that begins, another storage of the iteration with remakings; None if they are not made again.
    """

    storage: int
    after: int
    before: int
    original: int
    back: int | None


@dataclass(frozen=True)
class CarriedOut:
    """An iteration, the storages that are dropped in it, and, by op, the one that it repeats (-1: none).

    `last` is the last stay of each recorded storage; `recomputes` are as they were planned, in the drops' order.
    """

    recorded: Recorded
    drops: tuple[Drop, ...] = ()
    repeats: tuple[int, ...] = ()
    last: Mapping[int, int] = field(default_factory=dict)
    recomputes: tuple[Recompute, ...] = ()
    planned_maps: tuple[Map, ...] | None = None

    @property
    def maps(self) -> tuple[Map, ...]:
        """What ops map, as it was planned for the recorded iteration."""
        return self.recorded.maps if self.planned_maps is None else self.planned_maps

    def givers(self) -> dict[int, int]:
        """Return, by op, the recorded storage that gives its place to an output there."""
        original = {stay: recorded for recorded, stay in self.last.items()}
        return {each.op: original.get(each.giver, each.giver) for each in self.recorded.trace.handovers}

    def own_us(self) -> list[float]:
        """Return the microseconds of the program's own ops, with what they map."""
        ops = self.recorded.trace.ops
        return [op.duration_us for number, op in enumerate(ops) if not self.repeats or self.repeats[number] < 0]


def carried_out(recorded: Recorded, made: Transformed, recomputes: Iterable[Recompute]) -> CarriedOut:
    """Return the iteration `made`, in which `recomputes` of the recorded one are carried out."""
    writing = _Writing(recorded, made, sorted(recomputes, key=lambda one: one.after))
    asked_for = {op for one in writing.recomputes if not one.returns for op in one.ops}
    again = zip(made.op_of, made.runs_again, strict=True)
    repeats = tuple(writing.at[op] if runs_again else -1 for op, runs_again in again)
    handovers = writing.handovers()
    own = Recorded(
        replace(made.trace, handovers=handovers), writing.blocks, writing.iterations(),
        kept=tuple(writing.at[op] for op in sorted(asked_for.union(recorded.kept))),
        with_grad=tuple(recorded.with_grad[op] for op in made.op_of), around=recorded.around,
        maps=writing.maps(recorded.maps),
        absent_bytes={writing.last[storage]: size for storage, size in recorded.absent_bytes.items()},
        mapped_us=recorded.mapped_us,
    )  # fmt: skip
    return CarriedOut(own, tuple(writing.drops), repeats, writing.last, tuple(writing.recomputes), recorded.maps)


class _Writing:
    """`at`: the recorded ops' places; `stays`: of each recorded storage; `blocks`: a number for each stay."""

    def __init__(self, recorded: Recorded, made: Transformed, recomputes: list[Recompute]) -> None:
        self.recorded, self.old, self.made = recorded.trace, recorded.iterations, made
        self.at = [op for op, again in enumerate(made.runs_again) if not again]
        self.stays: dict[int, list[int]] = defaultdict(list)
        for stay, original in enumerate(made.storage_of):
            self.stays[original].append(stay)
        self.fresh = 1 + max([*recorded.blocks, *self.old.block.tolist()], default=0)
        own = recorded.blocks
        self.blocks = [
            self.fresh + stay if self._is_made_again(stay) else own[original]
            for stay, original in enumerate(made.storage_of)
        ]
        self.recomputes = recomputes
        self.drops = self._drops(recomputes)
        self.own_ticks = self._own_ticks()
        self.last = self._last_stays()
        self.instances = self._instances({block: storage for storage, block in enumerate(own)})
        self.block_of = {instance: block for block, instance in self.instances.items()}

    def _is_made_again(self, stay: int) -> bool:
        """Return whether an op that runs again allocates the stay, and not the program right before it."""
        storage, trace = self.made.trace.storages[stay], self.made.trace
        if storage.born_before or not self.made.runs_again[storage.alloc]:
            return False
        return storage.alloc_tick >= trace.ops[storage.alloc].first_tick

    def _drops(self, recomputes: list[Recompute]) -> list[Drop]:
        """Each absence ends the storage's stay of then: those that only pass through a remaking are freed there."""
        found = []
        for one in recomputes:
            after = self.at[one.after]
            before = self.at[one.before]
            (stay,) = [s for s in self.stays[one.storage] if self._is_there(s, after)]
            back = None
            if one.returns:
                (back,) = [s for s in self.stays[one.storage] if self._is_there(s, before)]
            found.append(Drop(stay, after, before, one.storage, back))
        return found

    def handovers(self) -> tuple[Handover, ...]:
        """Return those of the recorded iteration, between the stays that are the program's then."""
        found = []
        for each in self.recorded.handovers:
            taker = min(self.stays[each.taker], key=lambda stay: self.made.trace.storages[stay].alloc_tick)
            found.append(Handover(self.at[each.op], self.last[each.giver], taker))
        return tuple(found)

    def maps(self, maps: Iterable[Map]) -> tuple[Map, ...]:
        """Return those of the recorded iteration; what they map is never dropped, and has one stay."""
        return tuple(
            replace(each, op=self.at[each.op], storages=tuple(sorted(self.last[s] for s in each.storages)))
            for each in maps
        )

    def _is_there(self, stay: int, op: int) -> bool:
        storage = self.made.trace.storages[stay]
        return storage.alloc <= op < storage.free

    def _last_stays(self) -> dict[int, int]:
        """Return the stay of each storage that the program frees, or that outlives the iteration."""
        ended = {drop.storage for drop in self.drops}
        ended |= {stay for ticks in self.own_ticks.values() for stay, is_alloc in ticks if not is_alloc}
        return {self.made.storage_of[stay]: stay for stay in range(len(self.blocks)) if stay not in ended}

    def _instances(self, storage_of: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return the storage, and the number of the iteration, of each block that the two iterations make."""
        born = self.old.block[self.old.size > 0]
        count = self.old.first_count
        first, second = born[:count].tolist(), born[count:].tolist()
        known = {block: (storage_of[block], 0) for block in first if block in storage_of}
        known |= {new: (storage_of[old], 1) for old, new in zip(first, second, strict=True) if old in storage_of}
        return known

    def iterations(self) -> TwoIterations:
        """Return the allocations and frees of two iterations in a row."""
        rows = np.array(list(self._rows()), dtype=np.int64).reshape(-1, 4)
        block, size, begun, again = rows.T
        made_again = sum(self._is_made_again(stay) for stay in range(len(self.blocks)))
        return TwoIterations(block, size, begun, self.old.first_count + made_again, len(self.made.trace.ops), again)

    def _rows(self) -> Iterator[_Row]:
        ops, length = self.old.ops, len(self.made.trace.ops)
        begins = np.searchsorted(self.old.begun, np.arange(2 * ops + 2)).tolist()
        dropped: dict[int, list[Drop]] = defaultdict(list)
        for drop in self.drops:
            dropped[drop.after].append(drop)
        for begun in range(2 * ops + 1):
            iteration, op = divmod(begun - 1, ops) if begun else (0, -1)
            place = self.at[op] if op >= 0 else -1
            yield from self._recorded(begins[begun], begins[begun + 1], iteration * length + place + 1)
            for drop in dropped.get(place, ()):
                yield self._free(drop.storage, iteration, iteration * length + place + 1)
            upcoming = self.at[op + 1] if op + 1 < ops else length
            for again in range(place + 1, upcoming):
                for stay, is_alloc in self.own_ticks.get(again, ()):
                    at = iteration * length + again + 1
                    yield self._alloc(stay, iteration, at, again) if is_alloc else self._free(stay, iteration, at)

    def _recorded(self, first: int, last: int, begun: int) -> Iterator[_Row]:
        """Yield recorded rows; a storage that was dropped is freed as what it is at last, or has been for good."""
        for row in range(first, last):
            block, size = int(self.old.block[row]), int(self.old.size[row])
            storage, iteration = self.instances.get(block, (None, 0))
            if size < 0 and storage is not None:
                if storage in self.last:
                    yield self._free(self.last[storage], iteration, begun)
            else:
                yield block, size, begun, int(self.old.again[row]) if len(self.old.again) else 0

    def _block(self, stay: int, iteration: int) -> int:
        """Return the stay's number in the first iteration, or in the second."""
        if not iteration:
            return self.blocks[stay]
        if self._is_made_again(stay):
            return self.blocks[stay] + len(self.blocks)
        return self.block_of[self.made.storage_of[stay], iteration]

    def _alloc(self, stay: int, iteration: int, begun: int, again: int) -> _Row:
        return self._block(stay, iteration), self.made.trace.storages[stay].size_bytes, begun, again + 1

    def _free(self, stay: int, iteration: int, begun: int) -> _Row:
        return self._block(stay, iteration), -self.made.trace.storages[stay].size_bytes, begun, 0

    def _own_ticks(self) -> dict[int, list[tuple[int, bool]]]:
        """Return, by op that runs again, what is allocated (True) and freed in it and until the next op, in order."""
        trace = self.made.trace
        ticks = ticks_of(trace)
        ends = [op.first_tick for op in trace.ops[1:]] + [trace.ticks]
        return {
            op: list(filter(None, ticks[trace.ops[op].first_tick : ends[op]]))
            for op, again in enumerate(self.made.runs_again)
            if again
        }

"""A trace with its maps carried out: what they map takes no bytes of the arena, page frames do, and ops take longer.

An op that maps a storage does not use it, as far as the trace tells: the storage may be away then. One that is never in
the arena has no bytes. Page frames are a storage of the op's own. Ids of storages and indices of ops stay as they are;
the frames' storages come last, by op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memfit.ir import Category, Handover, Map, Op, Storage, Trace, accessing_ops, align_up
from memfit.machine import Machine
from memfit.planning.lifetimes import births
from memfit.planning.paging.cost import cost_us


def with_maps(trace: Trace, maps: Sequence[Map], machine: Machine | None = None) -> Trace:
    """Return the trace in which `maps` are carried out.

    Arguments:
        trace: The recorded iteration.
        maps: The maps, one for an op at most.
        machine: The machine whose links the bytes cross; None: they take no time.

    Returns:
        The trace, of the same signature.
    """
    if not maps:
        return trace
    by_op = {each.op: each for each in maps}
    never_there = never_resident(trace, maps)
    ticks = _Ticks(trace, maps)
    born = births(trace)
    ops = tuple(
        _op(trace, index, by_op.get(index), never_there, ticks.first_tick(index), born, machine)
        for index in range(len(trace.ops))
    )
    own = (
        replace(
            storage,
            size_bytes=0 if index in never_there else storage.size_bytes,
            alloc_tick=storage.alloc_tick if storage.born_before else ticks.of(storage.alloc_tick),
            free_tick=ticks.count if trace.outlives(storage) else ticks.of(storage.free_tick),
        )
        for index, storage in enumerate(trace.storages)
    )
    handovers = tuple(each for each in trace.handovers if _is_left(each, by_op, never_there))
    return replace(trace, ops=ops, storages=(*own, *ticks.frames()), ticks=ticks.count, handovers=handovers)


def never_resident(trace: Trace, maps: Sequence[Map]) -> frozenset[int]:
    """Return the storages that are never in the arena, since they are mapped wherever they are born or used.

    Arguments:
        trace: The recorded iteration.
        maps: The maps.

    Returns:
        Their ids.
    """
    mapped: dict[int, set[int]] = {}
    for each in maps:
        for storage in each.storages:
            mapped.setdefault(storage, set()).add(each.op)
    uses, born = accessing_ops(trace), births(trace)
    return frozenset(
        storage
        for storage, at in mapped.items()
        if at.issuperset(uses[storage]) and (trace.recurs(trace.storages[storage]) or born.get(storage) in at)
    )


def not_made_again(trace: Trace, maps: Sequence[Map]) -> frozenset[int]:
    """Return what no plan with these maps may make again: what is mapped, and what the ops that map make.

    A trace in which maps are carried out does not tell what these ops read.

    Arguments:
        trace: The recorded iteration.
        maps: The maps.

    Returns:
        The ids of the storages.
    """
    at, born = {each.op for each in maps}, births(trace)
    made = {storage for storage, op in born.items() if op in at}
    written = {storage for op in at for storage in trace.ops[op].writes}
    return frozenset(made | written | {storage for each in maps for storage in each.storages})


def frames_of(maps: Sequence[Map]) -> list[Map]:
    """Return the maps that need page frames, in the order of their ops: that of the frames' storages."""
    return sorted((each for each in maps if each.frame_bytes), key=lambda each: each.op)


def _op(
    trace: Trace,
    index: int,
    its: Map | None,
    never_there: frozenset[int],
    first_tick: int,
    born: dict[int, int],
    machine: Machine | None,
) -> Op:
    op = trace.ops[index]
    if its is None:
        return replace(op, first_tick=first_tick)
    mapped = set(its.storages)
    saved = sum(
        align_up(trace.storages[s].size_bytes, trace.alignment) for s in mapped & never_there if born.get(s) == index
    )
    return replace(
        op,
        first_tick=first_tick,
        reads=tuple(s for s in op.reads if s not in mapped),
        writes=tuple(s for s in op.writes if s not in mapped),
        workspace_bytes=max(op.workspace_bytes - saved, 0) + its.frame_bytes,
        duration_us=op.duration_us + (cost_us(trace, its, born, machine) if machine is not None else 0.0),
        split_bytes=0,
    )


def _is_left(handover: Handover, by_op: dict[int, Map], never_there: frozenset[int]) -> bool:
    """Return whether neither its op nor what it is about is mapped."""
    return handover.op not in by_op and not {handover.giver, handover.taker} & never_there


class _Ticks:
    """The ticks with those of page frames among them: taken as their op begins, given back before the next one does.

    What an op maps and what is freed in it, or right after it, is freed last there: away until then, it makes no less
    room than there.
    """

    def __init__(self, trace: Trace, maps: Sequence[Map]) -> None:
        self._trace, self._framed = trace, frames_of(maps)
        starts = np.array([op.first_tick for op in trace.ops], dtype=np.int64)
        framed = np.array([each.op for each in self._framed], dtype=np.int64)
        own = np.arange(trace.ticks)
        op = np.searchsorted(starts, own, side="right") - 1
        # A moment is an op, and whether frames are taken (0), recorded ticks come (1), or frames are given back (2).
        moments = np.concatenate((3 * op + 1, 3 * framed, 3 * framed + 2))
        last = [tick for each in maps for tick in self._ends(each) if op[tick] == each.op]
        moments[last] += 1
        order = np.argsort(moments, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self._own, taken = place[: trace.ticks], place[trace.ticks :]
        self._taken, self._given = taken[: len(framed)], taken[len(framed) :]
        self._starts = np.searchsorted(moments[order], 3 * np.arange(len(trace.ops)), side="left")
        self.count = len(order)

    def _ends(self, its: Map) -> list[int]:
        storages = (self._trace.storages[storage] for storage in its.storages)
        return [storage.free_tick for storage in storages if not self._trace.outlives(storage)]

    def of(self, tick: int) -> int:
        """Return the number of a recorded tick."""
        return int(self._own[tick])

    def first_tick(self, op: int) -> int:
        """Return the number of ticks before an op."""
        return int(self._starts[op])

    def frames(self) -> list[Storage]:
        """Return the storages of the frames."""
        return [
            Storage(each.frame_bytes, Category.SCRATCH, each.op, each.op + 1, int(begin), int(end), "")
            for each, begin, end in zip(self._framed, self._taken, self._given, strict=True)
        ]

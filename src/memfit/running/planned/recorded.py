"""Two recorded iterations, as a trace and as the stream of their allocations and frees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Map, Trace
from memfit.machine import Machine
from memfit.planning.addresses import TwoIterations
from memfit.planning.handing_over import hand_over, in_effect
from memfit.planning.paging.mapped import frames_of, never_resident, not_made_again, with_maps
from memfit.running.planned.around import Around
from memfit.tracing.build import RawRecording, Roles, build_iteration
from memfit.tracing.compressed import CompressedRecording


@dataclass(frozen=True)
class Recorded:
    """Two whole iterations of a recording, the first of them as a trace.

    Storages are numbered by what the iteration does with them, so that another process numbers them alike.
    """

    trace: Trace
    blocks: list[int]
    iterations: TwoIterations
    again_us: tuple[float, ...] = ()
    """For each op the microseconds of its own, without the Python code that follows it."""
    kept: tuple[int, ...] = ()
    """The ops whose calls have to be kept for what is handed over (`planning.handing_over`)."""
    with_grad: tuple[bool, ...] = ()
    """For each op, whether gradients were computed; by default they were in all."""
    around: Around | None = None
    """What plans have to lie around; by default they lie where there is nothing."""
    maps: tuple[Map, ...] = ()
    """What its ops map: the trace has that carried out."""
    absent_bytes: Mapping[int, int] = field(default_factory=dict)
    """The sizes of the storages that are never in the arena, which have no bytes in the trace."""
    mapped_us: float = 0.0
    """The microseconds that the ops take longer for what they map."""

    def __post_init__(self) -> None:
        if not self.with_grad:
            object.__setattr__(self, "with_grad", (True,) * len(self.trace.ops))

    def handed_over(self, limit_bytes: int, never: Collection[int] = ()) -> Recorded:
        """Return them with in-place reuse where the iteration needs more than `limit_bytes`."""
        made = hand_over(self.trace, limit_bytes, never)
        givers = {self.blocks[taker]: self.blocks[giver] for taker, giver in in_effect(made.trace).items()}
        iterations = self.iterations.freed_earlier(givers)
        return replace(self, trace=made.trace, iterations=iterations, kept=made.kept)

    def mapped(self, maps: Sequence[Map], machine: Machine) -> Recorded:
        """Return them with `maps` carried out, over the links of `machine`."""
        if not maps:
            return self
        absent = {storage: self.trace.storages[storage].size_bytes for storage in never_resident(self.trace, maps)}
        frames = [(each.op, each.frame_bytes) for each in frames_of(maps)]
        iterations, blocks = self.iterations.with_frames(frames)
        trace = with_maps(self.trace, maps, machine)
        longer_us = sum(op.duration_us for op in trace.ops) - sum(op.duration_us for op in self.trace.ops)
        return replace(self, trace=trace, blocks=[*self.blocks, *blocks], iterations=iterations, maps=tuple(maps),
                       absent_bytes=absent, mapped_us=longer_us)  # fmt: skip

    @property
    def not_made_again(self) -> frozenset[int]:
        """The storages that cannot be made again, since ops map them, or the op that makes them maps something."""
        return not_made_again(self.trace, self.maps)

    @property
    def absent_blocks(self) -> list[int]:
        """The blocks of the storages that are never in the arena."""
        return [self.blocks[storage] for storage in self.absent_bytes]

    @classmethod
    def of(
        cls, raw: RawRecording, op_marks: Sequence[int], tick_marks: Sequence[int], signature: str, alignment: int
    ) -> Recorded | None:
        """Return them; None if there is nothing to plan. The marks are where the first began and the two ended.

        If the second is of another kind, what of the first it frees, and when, is put into a copy of the first.
        """
        begin, middle, end = op_marks
        if begin == middle:
            return None
        ticks = np.stack([raw.ticks[column] for column in ("block", "bytes", "ops_begun")], axis=1)
        iterations = TwoIterations.of(ticks, tick_marks, op_marks)
        if not iterations.first_count:
            return None
        about = {"signature": signature, "torch_version": "", "device": "cpu", "script": "", "iteration": 0,
                 "alignment": alignment, "before": None}  # fmt: skip
        trace, blocks = build_iteration(raw, begin, middle, Roles(), **about)
        # The first of a session may be slower than those that follow, if ops are tried in it, or meet new memory.
        is_repeated = np.array_equal(raw.ops["name"][begin:middle], raw.ops["name"][middle:end])
        spans, own = _times_us(raw, middle, end) if is_repeated else _times_us(raw, begin, middle)
        ops = tuple(replace(op, duration_us=us) for op, us in zip(trace.ops, spans.tolist(), strict=True))
        again_us = tuple(own.tolist())
        trace, blocks = in_order_of_use(replace(trace, ops=ops), blocks, _first_uses(raw, begin, middle))
        trace = with_foreseen_copies(trace)
        with_grad = tuple(map(bool, raw.ops["with_grad"][begin:middle].tolist()))
        return cls(trace, blocks, iterations, again_us, with_grad=with_grad)


@dataclass(frozen=True)
class CompressedIterations:
    """A `Recorded`, kept small: the recording that it is made of, cut to its two iterations, and their ends."""

    compressed: CompressedRecording
    op_marks: Sequence[int]
    tick_marks: Sequence[int]
    signature: str
    alignment: int

    @classmethod
    def of(
        cls, raw: RawRecording, op_marks: Sequence[int], tick_marks: Sequence[int], signature: str, alignment: int
    ) -> CompressedIterations:
        """Compress what lies between the marks."""
        cut = raw.cut(op_marks[0], op_marks[-1], (tick_marks[0], tick_marks[-1]))
        ops, ticks = op_marks[0], tick_marks[-1] - len(cut.ticks)
        op_marks, tick_marks = [mark - ops for mark in op_marks], [mark - ticks for mark in tick_marks]
        return cls(CompressedRecording.of(cut), op_marks, tick_marks, signature, alignment)

    def recorded(self) -> Recorded | None:
        """Return the iterations; None if there is nothing to plan."""
        return Recorded.of(self.compressed.recording(), self.op_marks, self.tick_marks, self.signature, self.alignment)


def _times_us(raw: RawRecording, begin: int, end: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the microseconds from each op [begin, end) to the next, and those of its own, without what it waited."""
    # Until the next op begins Python is at work; copies go on meanwhile as they do in ops.
    starts, ops = raw.ops["start_ns"], raw.ops[begin:end]
    until = starts[end] if end < len(starts) else ops["end_ns"][-1]
    spans = np.maximum(np.diff(np.append(ops["start_ns"], until)) - ops["waited_ns"], 0) / 1000
    own = np.minimum((ops["end_ns"] - ops["start_ns"] - ops["waited_ns"]) / 1000, spans)
    return spans, np.maximum(own, 0)


def _first_uses(raw: RawRecording, begin: int, end: int) -> dict[int, int]:
    """Return, by block, its place in the order of first uses by ops [begin, end), operand by operand."""
    ops = raw.accesses["op"]
    used = raw.accesses["block"][(ops >= begin) & (ops < end)]
    return {block: place for place, block in enumerate(dict.fromkeys(used.tolist()))}


def with_foreseen_copies(trace: Trace) -> Trace:
    """Return the trace in which what did not leave for a tier that compresses would be as small there as what did."""
    left = [storage for storage in trace.storages if storage.stored_bytes]
    if not left:
        return trace
    share = sum(storage.stored_bytes for storage in left) / sum(storage.size_bytes for storage in left)
    storages = (s if s.stored_bytes else replace(s, stored_bytes=int(share * s.size_bytes)) for s in trace.storages)
    return replace(trace, storages=tuple(storages))


def in_order_of_use(trace: Trace, blocks: Sequence[int], first_use: Mapping[int, int]) -> tuple[Trace, list[int]]:
    """Return the trace and its blocks with storages in an order that depends on nothing before the iteration.

    First come those alive before, by their first use (without one: by their end), then those that it allocates, by
    that: the engine knows them in the order of their making and moving. Storages that are there before and after, and
    that no op of the iteration uses, are left out: the engine moves them away, or, if they are pinned, their bytes
    count. Those that the iteration before has left behind are in the order in which it made them, by which `successors`
    tells which is which.
    """

    def place(index: int) -> tuple[int, int]:
        storage = trace.storages[index]
        if not storage.born_before:
            return 2, storage.alloc_tick
        return (0, first_use[blocks[index]]) if blocks[index] in first_use else (1, storage.free_tick)

    unused = [i for i, storage in enumerate(trace.storages) if trace.recurs(storage) and blocks[i] not in first_use]
    kept = set(range(len(trace.storages))).difference(unused)
    pinned_bytes = sum(trace.storages[i].size_bytes for i in unused if trace.storages[i].pinned_from is not None)
    order = sorted(kept, key=place)
    left = [i for i in order if trace.storages[i].born_before and not trace.outlives(trace.storages[i])]
    made = dict(zip(left, sorted(left, key=blocks.__getitem__), strict=True))
    order = [made.get(i, i) for i in order]
    number = {old: new for new, old in enumerate(order)}
    ops = tuple(
        replace(op, reads=_renumbered(op.reads, number), writes=_renumbered(op.writes, number)) for op in trace.ops
    )
    storages = tuple(trace.storages[old] for old in order)
    handovers = tuple(
        replace(each, giver=number[each.giver], taker=number[each.taker])
        for each in trace.handovers
        if each.giver in number and each.taker in number
    )
    ordered = replace(trace, ops=ops, storages=storages, handovers=handovers,
                      pinned_bytes=trace.pinned_bytes + pinned_bytes)  # fmt: skip
    return ordered, [blocks[old] for old in order]


def _renumbered(storages: Sequence[int], number: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(number[storage] for storage in storages))

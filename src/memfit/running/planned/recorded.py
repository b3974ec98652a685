"""Two recorded iterations, as a trace and as the stream of their allocations and frees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.ir import Trace
from memfit.planning.addresses import TwoIterations
from memfit.tracing.build import RawRecording, Roles, build_iteration
from memfit.tracing.compressed import CompressedRecording


@dataclass(frozen=True)
class Recorded:
    """Two whole iterations of a recording, the first of them as a trace."""

    trace: Trace
    blocks: list[int]
    iterations: TwoIterations
    again_us: tuple[float, ...] = ()
    """For each op the microseconds of its own, without the Python code that follows it."""

    @classmethod
    def of(
        cls, raw: RawRecording, op_marks: Sequence[int], tick_marks: Sequence[int], signature: str, alignment: int
    ) -> Recorded | None:
        """Return them; None if they were not alike. The marks are where the first began and the two ended."""
        begin, middle, end = op_marks
        if middle - begin != end - middle or begin == middle:
            return None
        ticks = np.stack([raw.ticks[column] for column in ("block", "bytes", "ops_begun")], axis=1)
        iterations = TwoIterations.of(ticks, tick_marks, begin, middle - begin)
        if iterations is None or not iterations.first_count:
            return None
        about = {"signature": signature, "torch_version": "", "device": "cpu", "script": "", "iteration": 0,
                 "alignment": alignment, "before": None}  # fmt: skip
        trace, blocks = build_iteration(raw, begin, middle, Roles(), **about)
        # Until the next op begins Python is at work; copies go on meanwhile as they do in ops.
        starts, ops_of_it = raw.ops["start_ns"], raw.ops[begin:middle]
        until = starts[middle] if middle < len(starts) else ops_of_it["end_ns"][-1]
        begins = np.append(ops_of_it["start_ns"], until)
        spans = np.maximum(np.diff(begins) - ops_of_it["waited_ns"], 0) / 1000
        ops = tuple(replace(op, duration_us=us) for op, us in zip(trace.ops, spans.tolist(), strict=True))
        own = np.minimum((ops_of_it["end_ns"] - ops_of_it["start_ns"] - ops_of_it["waited_ns"]) / 1000, spans)
        again_us = tuple(np.maximum(own, 0).tolist())
        return cls(_without_idle(replace(trace, ops=ops)), blocks, iterations, again_us)


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
        """Return the iterations; None if they were not alike."""
        return Recorded.of(self.compressed.recording(), self.op_marks, self.tick_marks, self.signature, self.alignment)


def _without_idle(trace: Trace) -> Trace:
    """Return the trace without the bytes of storages that no op of an iteration uses: the engine moves them away."""
    used = {s for op in trace.ops for s in (*op.reads, *op.writes)}
    storages = tuple(
        replace(storage, size_bytes=0) if trace.recurs(storage) and index not in used else storage
        for index, storage in enumerate(trace.storages)
    )
    return replace(trace, storages=storages)

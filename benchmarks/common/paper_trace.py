"""The AutoSwap paper's published trace as one of memfit's: an event is an op, of the time until the next event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.paths import paper_file
from memfit.files import load_paper_accesses
from memfit.files.paper_text import PaperAccess
from memfit.ir import Category, Trace
from memfit.simulate import load_bytes
from tests.trace_builder import TraceBuilder

ITERATIONS = 3


@dataclass(frozen=True, eq=False)
class PaperTrace:
    """Three iterations of `length` events each, their times and the live bytes at each."""

    events: tuple[PaperAccess, ...]
    load_bytes: NDArray[np.int64]
    time_us: NDArray[np.float64]

    @property
    def length(self) -> int:
        """The number of events of an iteration."""
        return len(self.events) // ITERATIONS

    @property
    def iteration_us(self) -> float:
        """The mean time of an iteration."""
        return float(self.time_us[-1]) / ITERATIONS


def load() -> PaperTrace:
    """Read the two files of the VGG net."""
    events = load_paper_accesses(paper_file("cifar10_vgg_b100_accesses.csv"))
    load_path = paper_file("cifar10_vgg_b100_load.csv")
    load = np.loadtxt(load_path, dtype=np.int64, delimiter=",", skiprows=1, usecols=1)  # index,load_bytes
    return PaperTrace(events, load, np.array([event.time_ns for event in events]) / 1000)


def as_trace(paper: PaperTrace) -> Trace:
    """Return the middle iteration; what is alive but in no event is pinned, so that the load is the published one.

    A block alive before and after it recurs. A layer's end marker reads the block it names.
    """
    middle = slice(paper.length, 2 * paper.length)
    trace = _build(paper.events[middle], np.diff(paper.time_us)[middle])
    # The published load is that before an event, ours the most from before it to after it: never less, then.
    more = paper.load_bytes[middle] - load_bytes(trace)
    return replace(trace, pinned_bytes=int(more.max()))


def _build(events: Sequence[PaperAccess], durations_us: NDArray[np.float64]) -> Trace:
    builder, storage_of = TraceBuilder(), {}
    seen: set[int] = set()
    for event in events:
        if event.block not in seen and event.action != "malloc":
            storage_of[event.block] = builder.before(event.size_bytes, Category.ACTIVATION)
        seen.add(event.block)
    for event, duration_us in zip(events, durations_us.tolist(), strict=True):
        if event.action == "malloc":
            (storage_of[event.block],) = builder.op("malloc", outputs=[event.size_bytes], duration_us=duration_us)
            continue
        touched = [storage_of[event.block]]
        reads, writes = ([], touched) if event.action == "mutable" else (touched, [])
        builder.op(event.action, reads=reads, writes=writes, duration_us=duration_us)
        if event.action == "free":
            builder.free(storage_of.pop(event.block))
    return builder.build(signature="vgg", torch_version="", device="cuda", script="vgg", iteration=1)

"""The AutoSwap paper's published trace as one of memfit's: an event is an op, of the time until the next event."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.paths import paper_file
from memfit.files import load_paper_accesses
from memfit.files.paper_text import PaperAccess
from memfit.ir import Category, Op, Phase, Storage, Trace
from memfit.simulate import load_bytes as simulated_load_bytes

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
    with open(paper_file("cifar10_vgg_b100_load.csv")) as file:
        load_bytes = [int(row["load_bytes"]) for row in csv.DictReader(file)]
    time_us = np.array([event.time_ns for event in events]) / 1000
    return PaperTrace(events, np.array(load_bytes, dtype=np.int64), time_us)


def as_trace(paper: PaperTrace) -> Trace:
    """Return the middle iteration; what is alive but in no event is pinned, so that the load is the published one.

    A block alive before and after it recurs. A layer's end marker reads the block it names.
    """
    length = paper.length
    rows = _Rows(paper.events[length : 2 * length], paper.events[2 * length :])
    duration = np.diff(paper.time_us)[length : 2 * length]
    ops = tuple(
        Op(event.action, Phase.FORWARD, float(duration[i]), "", reads, writes, rows.first_tick[i], rows.workspace[i])
        for i, (event, reads, writes) in enumerate(zip(rows.events, rows.reads, rows.writes, strict=True))
    )
    trace = Trace(ops, tuple(rows.storages()), rows.ticks, "vgg", "", "cuda", "vgg", 1, 1, 0)
    return _with_pinned(trace, paper.load_bytes[length : 2 * length])


def _with_pinned(trace: Trace, load_bytes: NDArray[np.int64]) -> Trace:
    # The published load is that before an event, ours the most from before it to after it: never less, then.
    return replace(trace, pinned_bytes=int((load_bytes - simulated_load_bytes(trace)).max()))


class _Rows:
    """The storages of one iteration, by following which block is which."""

    def __init__(self, events: Sequence[PaperAccess], after: Sequence[PaperAccess]) -> None:
        self.events = events
        self.ticks = 0
        self.first_tick: list[int] = []
        self.workspace: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        self.writes: list[tuple[int, ...]] = []
        self._rows: list[list[int]] = []  # size, alloc, alloc tick, free, free tick
        self._of: dict[int, int] = {}
        self._find_born_before()
        for index, event in enumerate(events):
            self._step(index, event)

    def _find_born_before(self) -> None:
        seen: set[int] = set()
        for event in self.events:
            if event.block not in seen and event.action != "malloc":
                self._of[event.block] = self._add(event.size_bytes, 0, -1)
            seen.add(event.block)

    def _add(self, size_bytes: int, alloc: int, tick: int) -> int:
        self._rows.append([size_bytes, alloc, tick, -1, -1])
        return len(self._rows) - 1

    def _step(self, index: int, event: PaperAccess) -> None:
        self.first_tick.append(self.ticks)
        self.workspace.append(event.size_bytes if event.action == "malloc" else 0)
        if event.action == "malloc":
            self._of[event.block] = self._add(event.size_bytes, index, self.ticks)
            self.ticks += 1
        storage = self._of[event.block]
        self.writes.append((storage,) if event.action in ("malloc", "mutable") else ())
        self.reads.append((storage,) if event.action in ("read", "layer", "free") else ())
        if event.action == "free":
            self._rows[self._of.pop(event.block)][3:] = [index + 1, self.ticks]
            self.ticks += 1

    def storages(self) -> list[Storage]:
        count, ticks = len(self.events), self.ticks
        return [
            Storage(
                size, Category.ACTIVATION, alloc, count if free < 0 else free, tick, ticks if free < 0 else gone, ""
            )
            for size, alloc, tick, free, gone in self._rows
        ]

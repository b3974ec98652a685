"""How much less time plans might add if large storages left and returned in pieces.

Reads the traces that `record_models` writes (`--traces FOLDER`), at the budgets of `bounds`. Each storage of 2 % of the
budget and more is cut into parts that are storages of their own: what reads it reads them all, what changes it in place
changes them one after the other. In a plan for that trace parts leave, return and are made again one by one, wherever
there is room: it can do more than one that moves a storage in pieces, whose place is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline.bounds import EFFORTS, budget_of, joint_overhead, percent, trace_files
from memfit.files import find_machine, load_trace
from memfit.ir import Op, Storage, Trace
from memfit.machine import Machine, profile_names
from memfit.planning.joint.again import corrected
from memfit.planning.lifetimes import births

_LARGE = 0.02  # of the budget


class _Cut:
    """A trace whose storages of `least_bytes` and more are cut into `parts`."""

    def __init__(self, trace: Trace, least_bytes: int, parts: int) -> None:
        self.trace, self.parts, self.born = trace, parts, births(trace)
        piece = parts * trace.alignment
        self.is_cut = [s.size_bytes >= least_bytes and s.size_bytes % piece == 0 for s in trace.storages]
        counts = [self._count(storage) for storage in range(len(trace.storages))]
        self.first = [0, *accumulate(counts)]
        self.tick = [0, *accumulate(self._ticks(counts))]
        self.op = [0, *accumulate(parts if self._goes_by_parts(i) else 1 for i in range(len(trace.ops)))]

    def result(self) -> Trace:
        """Return the trace."""
        ops = tuple(op for index in range(len(self.trace.ops)) for op in self._ops(index))
        storages = tuple(part for index in range(len(self.trace.storages)) for part in self._storages(index))
        return replace(self.trace, ops=ops, storages=storages, ticks=self.tick[-1], handovers=())

    def _count(self, storage: int) -> int:
        return self.parts if self.is_cut[storage] else 1

    def _ticks(self, counts: Sequence[int]) -> list[int]:
        """Return how many ticks each tick becomes."""
        ticks = [1] * self.trace.ticks
        for storage, count in zip(self.trace.storages, counts, strict=True):
            for tick in (storage.alloc_tick, storage.free_tick):
                if 0 <= tick < self.trace.ticks:
                    ticks[tick] = count
        return ticks

    def _goes_by_parts(self, index: int) -> bool:
        """Return whether the op only changes one storage in place, which is cut as its inputs are."""
        op = self.trace.ops[index]
        changes_one = len(op.writes) == 1 and self.born.get(op.writes[0]) != index
        return changes_one and all(self.is_cut[storage] for storage in (*op.reads, *op.writes))

    def _all(self, storages: Sequence[int]) -> tuple[int, ...]:
        return tuple(part for s in storages for part in range(self.first[s], self.first[s + 1]))

    def _ops(self, index: int) -> Iterator[Op]:
        op = replace(self.trace.ops[index], first_tick=self.tick[self.trace.ops[index].first_tick])
        if not self._goes_by_parts(index):
            yield replace(op, reads=self._all(op.reads), writes=self._all(op.writes))
            return
        for part in range(self.parts):
            reads, writes = (tuple(self.first[s] + part for s in ids) for ids in (op.reads, op.writes))
            yield replace(op, reads=reads, writes=writes, duration_us=op.duration_us / self.parts)

    def _storages(self, index: int) -> Iterator[Storage]:
        storage, count = self.trace.storages[index], self._count(index)
        # What an op that goes by parts allocates besides, it allocates in the last of them.
        is_inside = storage.alloc_tick >= self.trace.ops[storage.alloc].first_tick
        begin = self.op[storage.alloc + 1] - 1 if is_inside else self.op[storage.alloc]
        for part in range(count):
            alloc = storage.alloc_tick if storage.born_before else self.tick[storage.alloc_tick] + part
            free = self.tick[-1] if self.trace.outlives(storage) else self.tick[storage.free_tick] + part
            yield replace(storage, size_bytes=storage.size_bytes // count, alloc=begin,
                          free=self.op[storage.free], alloc_tick=alloc, free_tick=free)  # fmt: skip


def in_parts(trace: Trace, least_bytes: int, parts: int) -> Trace:
    """Return the trace with each storage of `least_bytes` and more cut into so many parts, if they are aligned."""
    return _Cut(trace, least_bytes, parts).result()


def cell(trace: Trace, machine: Machine, share: int, counts: Sequence[int]) -> Row:
    """Return what plans add at one budget by the number of parts, as parts of the computation."""
    budget = budget_of(trace, share)
    cut = {str(count): in_parts(trace, int(_LARGE * budget), count) for count in counts}
    effort = EFFORTS["joint_plan"]
    return {"share": share} | {name: joint_overhead(one, machine, budget, effort) for name, one in cut.items()}


def table(figures: Row) -> Table:
    """Return one row a model and budget."""
    counts = [str(count) for count in figures["parts"]]
    rows = [
        [each["name"], f"{cell['share']} %", *(percent(cell[count]) for count in counts)]
        for each in figures["models"]
        for cell in each["cells"]
    ]
    columns = ["model", "budget", *("whole" if count == "1" else f"{count} parts" for count in counts)]
    return Table(f"Added time on {figures['machine']}, % of the step, by the parts of large storages", columns, rows)


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these"}] = ("vgg16", "unet", "resnet50"),
    machine: Annotated[str, {"choices": profile_names()}] = "pcie5",
    shares: Sequence[int] = (60, 45, 30, 20),
    parts: Sequence[int] = (1, 2, 4),
) -> Iterator[Result]:
    """Plan each trace with its large storages whole and in parts."""
    link, found = find_machine(machine), []
    for path in trace_files(traces, models):
        trace = corrected(load_trace(path))
        cells = [cell(trace, link, share, parts) for share in shares]
        found.append({"name": path.name.split(".")[0], "cells": cells})
    figures: Row = {"machine": machine, "parts": list(parts), "models": found}
    yield Result("pieces", figures, [table(figures)])

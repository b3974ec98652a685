"""The lifetimes of a file, placed."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.errors import UsageError
from memfit.events import NamedLifetimes, lifetimes_of_trace
from memfit.files.recognise import load_lifetimes_and_trace
from memfit.ir import Trace
from memfit.planning.handing_over import hand_over_everywhere, one_row_each
from memfit.planning.lifetimes import births
from memfit.planning.packing import Lifetimes, Packing, pack
from memfit.reporting.packing import PackReport
from memfit.reporting.picture import PlacedLifetimes


@dataclass(frozen=True, eq=False)
class PackedFile:
    """The lifetimes of a file with an address each.

    `category` and `op`, the name of the op that allocated it or "", have an entry for each where the file tells.
    `row` is the packing's row of each lifetime: its own, unless some take over each other's bytes in place.
    """

    file: str
    lifetimes: NamedLifetimes
    packing: Packing
    category: tuple[str, ...]
    op: tuple[str, ...]
    row: Int64Array

    @property
    def offsets(self) -> Int64Array:
        """The address of each lifetime, in bytes."""
        return self.packing.offsets[self.row]

    def report(self) -> PackReport:
        """Return the figures, without the addresses."""
        return PackReport(
            file=self.file,
            lifetimes=len(self.lifetimes),
            in_place=len(self.row) - len(self.packing.offsets),
            footprint_bytes=self.packing.footprint,
            lower_bound_bytes=self.packing.lower_bound,
            gap=self.packing.gap,
            proven=self.packing.proven,
            seconds=self.packing.seconds,
        )

    def picture(self) -> PlacedLifetimes:
        """Return the picture of the placement."""
        lives = self.lifetimes
        unknown = ("",) * len(lives)
        columns = (lives.ids, self.op or unknown, lives.sources or unknown)
        titles = [" ".join(filter(None, known)) for known in zip(*columns, strict=True)]
        heading = os.path.basename(self.file)
        return PlacedLifetimes(lives.lower, lives.upper, lives.size, self.offsets, self.category, titles, heading)


def pack_file(
    file: str,
    *,
    capacity: int | None,
    alignment: int,
    effort: float,
    seed: int = 0,
    device: int | None = None,
    in_place: bool = False,
) -> PackedFile:
    """Return an address for every lifetime in `file`; `alignment` in bytes, `effort` in seconds.

    `in_place`: an op's output takes the place of an input that dies there, where that was tried (traces only).
    Raises InputError for a malformed file, UsageError for `in_place` on a file that says nothing of that, and
    BudgetError when no placement within `capacity` bytes was found.
    """
    lifetimes, trace = load_lifetimes_and_trace(file, device=device)
    table, row = Lifetimes(lifetimes.lower, lifetimes.upper, lifetimes.size), np.arange(len(lifetimes))
    if in_place:
        if trace is None or not trace.handovers:
            raise UsageError(
                f"{file} does not say which op could work in place", remedy="pass a trace of `memfit trace`"
            )
        trace = hand_over_everywhere(trace)
        lifetimes, (table, row) = lifetimes_of_trace(trace), one_row_each(trace)
    packing = pack(table, capacity=capacity, alignment=alignment, effort=effort, seed=seed)
    categories = () if trace is None else tuple(storage.category.value for storage in trace.storages)
    return PackedFile(file, lifetimes, packing, categories, () if trace is None else _ops(trace), row)


def _ops(trace: Trace) -> tuple[str, ...]:
    born_in = births(trace)
    return tuple(trace.ops[born_in[s]].name if s in born_in else "" for s in range(len(trace.storages)))

"""The report of `memfit pack`: a file's lifetimes, placed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from memfit.errors import UsageError
from memfit.events import Int64Array, Lifetimes
from memfit.files import load_lifetimes, load_trace
from memfit.files.recognise import Format, recognise
from memfit.ir import Trace
from memfit.planning.lifetimes import births
from memfit.planning.packing import Lifetimes as Table
from memfit.planning.packing import Packing, group_in_place, pack
from memfit.reporting.picture import PlacedLifetimes, draw_addresses
from memfit.units import format_bytes


@dataclass(frozen=True, eq=False)
class Packed:
    """The lifetimes of a file with an address each.

    `category` and `op`, the name of the op that allocated it or "", have an entry for each where the file tells.
    `row` is the packing's row of each lifetime: its own, unless some take over each other's bytes in place.
    """

    file: str
    lifetimes: Lifetimes
    packing: Packing
    category: tuple[str, ...]
    op: tuple[str, ...]
    row: Int64Array

    @property
    def in_place(self) -> int:
        """The number of lifetimes that take over the bytes of another."""
        return len(self.row) - len(self.packing.offsets)

    @property
    def offsets(self) -> Int64Array:
        """The address of each lifetime, in bytes."""
        return self.packing.offsets[self.row]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, without the addresses."""
        return {
            "file": self.file,
            "lifetimes": len(self.lifetimes),
            "in_place": self.in_place,
            "footprint_bytes": self.packing.footprint,
            "lower_bound_bytes": self.packing.lower_bound,
            "gap": self.packing.gap,
            "proven": self.packing.proven,
            "seconds": self.packing.seconds,
        }

    def summary(self) -> str:
        """Return the figures for a person."""
        p = self.packing
        if p.footprint == p.lower_bound:
            how = "the lower bound: nothing can be smaller"
        elif p.proven:
            how = f"proven the smallest; the peak of live bytes is {format_bytes(p.lower_bound)}"
        else:
            how = (
                f"at most {p.gap:.4%} above the smallest possible ({format_bytes(p.lower_bound)} are live at the peak)"
            )
        exact = f"{format_bytes(p.footprint)} ({p.footprint:,} bytes)"
        shared = f" ({self.in_place} in place of another)" if self.in_place else ""
        return f"{len(self.lifetimes)} lifetimes{shared} in {exact}, {how}; {p.seconds:.3f} s"

    def picture(self) -> str:
        """Return addresses by time as SVG."""
        lives = self.lifetimes
        unknown = ("",) * len(lives)
        columns = (lives.ids, self.op or unknown, lives.sources or unknown)
        titles = [" ".join(filter(None, known)) for known in zip(*columns, strict=True)]
        placed = PlacedLifetimes(lives.lower, lives.upper, lives.size, self.offsets, self.category, titles)
        return draw_addresses(placed, os.path.basename(self.file))


def pack_file(
    file: str,
    *,
    capacity: int | None,
    alignment: int,
    effort: float,
    seed: int = 0,
    device: int | None = None,
    in_place: bool = False,
) -> Packed:
    """Return an address for every lifetime in `file`; `alignment` in bytes, `effort` in seconds.

    `in_place`: an elementwise op's output may take over the bytes of an input that dies there (traces only).
    Raises InputError for a malformed file, UsageError for `in_place` where there are no ops, and BudgetError when
    no placement within `capacity` bytes was found.
    """
    lifetimes = load_lifetimes(file, device=device)
    trace = load_trace(file) if recognise(file) is Format.TRACE else None
    if in_place and trace is None:
        raise UsageError(f"{file} does not say which op could work in place", remedy="pass a trace of `memfit trace`")
    table, row = Table(lifetimes.lower, lifetimes.upper, lifetimes.size), np.arange(len(lifetimes))
    if in_place and trace is not None:
        grouped = group_in_place(trace, enabled=True)
        table, row = grouped.lifetimes, grouped.row
    packing = pack(table, capacity=capacity, alignment=alignment, effort=effort, seed=seed)
    categories = () if trace is None else tuple(storage.category.value for storage in trace.storages)
    return Packed(file, lifetimes, packing, categories, () if trace is None else _ops(trace), row)


def _ops(trace: Trace) -> tuple[str, ...]:
    born_in = births(trace)
    return tuple(trace.ops[born_in[s]].name if s in born_in else "" for s in range(len(trace.storages)))

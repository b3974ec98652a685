"""What `memfit pack` reports: a file's lifetimes, placed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from memfit.events import Int64Array, Lifetimes
from memfit.files import load_lifetimes, load_trace
from memfit.files.recognise import Format, recognise
from memfit.planning.packing import Lifetimes as Table
from memfit.planning.packing import Packing, pack
from memfit.reporting.picture import PlacedLifetimes, draw_addresses
from memfit.units import format_bytes


@dataclass(frozen=True, eq=False)
class Packed:
    """The lifetimes of a file with an address each; `category` has an entry for each where the file tells."""

    file: str
    lifetimes: Lifetimes
    packing: Packing
    category: tuple[str, ...]

    @property
    def offsets(self) -> Int64Array:
        """The address of each lifetime, in bytes."""
        return self.packing.offsets

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, without the addresses."""
        return {
            "file": self.file,
            "lifetimes": len(self.lifetimes),
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
        return f"{len(self.lifetimes)} lifetimes in {exact}, {how}; {p.seconds:.3f} s"

    def picture(self) -> str:
        """Return addresses by time as SVG."""
        lives = self.lifetimes
        sources = lives.sources or ("",) * len(lives)
        titles = [f"{i} {source}".rstrip() for i, source in zip(lives.ids, sources, strict=True)]
        placed = PlacedLifetimes(lives.lower, lives.upper, lives.size, self.offsets, self.category, titles)
        return draw_addresses(placed, os.path.basename(self.file))


def pack_file(
    file: str, *, capacity: int | None, alignment: int, effort: float, seed: int = 0, device: int | None = None
) -> Packed:
    """Return an address for every lifetime in `file`; `alignment` in bytes, `effort` in seconds.

    Raises InputError for a malformed file, and BudgetError when no placement within `capacity` bytes was found.
    """
    lifetimes = load_lifetimes(file, device=device)
    table = Table(lifetimes.lower, lifetimes.upper, lifetimes.size)
    packing = pack(table, capacity=capacity, alignment=alignment, effort=effort, seed=seed)
    return Packed(file, lifetimes, packing, _categories(file))


def _categories(file: str) -> tuple[str, ...]:
    if recognise(file) is not Format.TRACE:
        return ()
    return tuple(storage.category.value for storage in load_trace(file).storages)

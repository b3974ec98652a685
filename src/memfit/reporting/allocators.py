"""The report of `memfit compare`: one file's mallocs and frees in every allocator."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from memfit.reporting.tables import add_row, exact_bytes, new_table
from memfit.units import format_bytes


@dataclass(frozen=True, slots=True)
class AllocatorRow:
    """One allocator's figures.

    `footprint_bytes` is the peak of what it reserves, `over_peak` how much more that is than the peak of live bytes,
    as a fraction of these. `fragmentation` is 1 - live / reserved where reserved is at its peak. `driver_allocations`
    counts how often it asked the driver for memory.
    """

    allocator: str
    footprint_bytes: int
    over_peak: float
    fragmentation: float
    driver_allocations: int
    us_per_call: float


@dataclass(frozen=True, slots=True)
class AllocatorComparison:
    """The rows of one file, the smallest footprint first. `calls` counts its mallocs and frees."""

    file: str
    storages: int
    calls: int
    peak_live_bytes: int
    rows: tuple[AllocatorRow, ...]


def to_text(comparison: AllocatorComparison) -> RenderableType:
    """Return `comparison` as a table, a row an allocator."""
    peak = exact_bytes(comparison.peak_live_bytes)
    title = f"{comparison.storages} storages, {comparison.calls} mallocs and frees, {peak} live at the peak"
    columns = ("allocator", "footprint", "over the peak", "fragmentation", "driver allocations", "us a call")
    table = new_table(title, *columns)
    table.columns[0].no_wrap = True
    for row in comparison.rows:
        add_row(
            table,
            row.allocator,
            format_bytes(row.footprint_bytes),
            f"{100 * row.over_peak:+.2f} %",
            f"{100 * row.fragmentation:.1f} %",
            str(row.driver_allocations),
            f"{row.us_per_call:.2f}",
        )
    return table

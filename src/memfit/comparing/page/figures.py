"""The figures of a run, in words."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.files.document import Fields
from memfit.reporting.page import RunFigures
from memfit.units import format_bytes, format_us


def run_figures(stats: Fields) -> RunFigures:
    """Return the figures that `memfit run --stats` writes; raises InputError if one is missing or malformed."""
    return RunFigures(stats.integer("budget_bytes", 0) or None, tuple(_rows(stats)))


def _rows(stats: Fields) -> Iterator[tuple[str, str]]:
    def size(name: str) -> str:
        return format_bytes(stats.integer(name, 0))

    iterations, planned = stats.integer("iterations", 0), stats.integer("planned_iterations", 0)
    yield "iterations", f"{iterations}, {planned} of them by a plan"
    waited_us = (stats.integer("stall_ns", 0) + stats.integer("copy_ns", 0)) / 1e3
    yield "time", f"{stats.number('seconds'):.1f} s, of which ops waited {format_us(waited_us)} for copies"
    limit = f" of {size('budget_bytes')}" if stats.integer("budget_bytes", 0) else ""
    yield "arena", f"{size('peak_footprint_bytes')}{limit} at most"
    yield "live tensors", f"{size('peak_live_bytes')} at most"
    yield "moved", f"{size('bytes_out')} out and {size('bytes_in')} in ({stats.text('tier')})"
    if stats.integer("recomputations", 0):
        again_us = stats.integer("recompute_ns", 0) / 1e3
        yield "made again", f"{stats.integer('recomputations', 0)} storages in {format_us(again_us)}"
    if stats.integer("growths", 0):
        yield "grown", f"{stats.integer('growths', 0)} times, by {size('peak_growth_bytes')} at most"
    yield "process", f"{size('peak_rss_bytes')} of memory at most"

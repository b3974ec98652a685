"""Every replayed allocator on real lifetimes: how much each reserves over the peak of live bytes.

The lifetimes are those of the data folder (MEMFIT_DATA) and of the examples, which are recorded first. memfit's packer
has no rounding of its own: it is run with that of each other allocator, and its footprint is compared with theirs at
the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.common.examples import Traces, example_traces
from benchmarks.common.paths import DATA, lifetime_files
from benchmarks.common.result import Result, Row, Table
from memfit.baselines.allocators import ALLOCATORS, AllocatorOutcome, allocator_names, run_allocator
from memfit.baselines.allocators.replay import replay_planner
from memfit.comparing.allocators import memfit_packer
from memfit.events import MallocStream, live_after_steps
from memfit.files import load_events

EFFORT = 3.0
LARGEST_ALIGNMENT = 512  # whole pages are the driver's, and one allocation needs them once


def alignment_of(name: str) -> int:
    """Return what the allocator rounds sizes to (bytes); planners take them as they are."""
    return min(ALLOCATORS[name]().alignment, LARGEST_ALIGNMENT) if name in ALLOCATORS else 1


def ours(events: MallocStream) -> dict[int, AllocatorOutcome]:
    """Return what memfit's packer makes of `events`, by alignment."""
    alignments = sorted({alignment_of(name) for name in allocator_names()})
    return {a: replay_planner("memfit", partial(memfit_packer, alignment=a, effort=EFFORT), events) for a in alignments}


def measure(path: Path) -> Row:
    """Return the figures of every allocator, by name, on the lifetimes in `path`; of memfit's at each alignment."""
    events = load_events(path)
    packed = ours(events)
    others = {name: run_allocator(name, events) for name in allocator_names()}
    peak = max(live_after_steps(events))
    outcomes = {f"memfit {a} B": outcome for a, outcome in packed.items()} | others
    smaller = [n for n, o in others.items() if o.footprint_bytes < packed[alignment_of(n)].footprint_bytes]
    return {
        "file": path.name.split(".")[0],
        "calls": len(events.steps),
        "peak_live_bytes": peak,
        # Of the whole file, also where a planner takes one iteration of several.
        "over_peak_percent": {name: round(100 * (o.footprint_bytes / peak - 1), 4) for name, o in outcomes.items()},
        "smaller_than_memfit": smaller,
        "driver_allocations": {name: outcome.driver_allocations for name, outcome in outcomes.items()},
        "us_per_call": {name: round(outcome.us_per_call, 2) for name, outcome in outcomes.items()},
    }


def table(rows: list[Row]) -> Table:
    """Return one row a file: how much each allocator reserves over the peak of live bytes."""
    names = [name for name in rows[0]["over_peak_percent"] if name not in ("memfit 16 B", "memfit 256 B")]
    lines = [[row["file"], *(f"{row['over_peak_percent'][name]:.2f}" for name in names)] for row in rows]
    return Table("Footprint over the peak of live bytes", ["%", *names], lines)


def run(
    files: Annotated[Sequence[Path], {"help": "of lifetimes, instead of those of the data folder"}],
    *,
    traces: Traces = None,
) -> Iterator[Result]:
    """Replay each file in each allocator."""
    files = files or [*lifetime_files(), *sorted((DATA / "paper").glob("*_mallocs.csv"))]
    with example_traces(traces) as recorded:
        rows = [measure(path) for path in (*files, *recorded)]
    notes = [f"{row['file']}: smaller than memfit: {', '.join(row['smaller_than_memfit'])}"
             for row in rows if row["smaller_than_memfit"]]  # fmt: skip
    yield Result("allocators", rows, [table(rows)], notes)

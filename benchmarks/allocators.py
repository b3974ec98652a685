"""Every replayed allocator on real lifetimes: how much each reserves over the peak of live bytes.

The lifetimes are those of the data folder (../shared/data beside the project, or MEMFIT_DATA) and of the examples,
which are recorded first. memfit's packer has no rounding of its own: it is run with that of each other allocator, and
its footprint is compared with theirs at the same one.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from common import DATA, add_traces_option, example_traces, lifetime_files, save, show

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


def measure(path: Path) -> dict[str, Any]:
    """Return the figures of every allocator on the lifetimes in `path`, with memfit's at each alignment."""
    events = load_events(path)
    packed = ours(events)
    others = {name: run_allocator(name, events) for name in allocator_names()}
    peak = max(live_after_steps(events))
    outcomes = {f"memfit {a} B": outcome for a, outcome in packed.items()} | others
    return {
        "file": path.name.split(".")[0],
        "calls": len(events.steps),
        "peak_live_bytes": peak,
        # Of the whole file, also where a planner takes one iteration of several.
        "over_peak_percent": {n: round(100 * (o.footprint_bytes / peak - 1), 4) for n, o in outcomes.items()},
        "smaller_than_memfit": [
            name for name, o in others.items() if o.footprint_bytes < packed[alignment_of(name)].footprint_bytes
        ],
        "driver_allocations": {name: outcome.driver_allocations for name, outcome in outcomes.items()},
        "us_per_call": {name: round(outcome.us_per_call, 2) for name, outcome in outcomes.items()},
    }


def main() -> None:
    """Print the table and write results/allocators.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="files of lifetimes, instead of those of the data folder")
    add_traces_option(parser)
    arguments = parser.parse_args()
    files = arguments.files or [*lifetime_files(), *sorted((DATA / "paper").glob("*_mallocs.csv"))]
    with example_traces(arguments.traces) as traces:
        results = [measure(path) for path in (*files, *traces)]
    columns = list(results[0]["over_peak_percent"])
    rows = [[r["file"], *(f"{r['over_peak_percent'][name]:+.2f}" for name in columns)] for r in results]
    show("Footprint over the peak of live bytes, %", ("file", *columns), rows)
    for result in results:
        if result["smaller_than_memfit"]:
            print(f"{result['file']}: smaller than memfit: {', '.join(result['smaller_than_memfit'])}")
    save("allocators", results)


if __name__ == "__main__":
    main()

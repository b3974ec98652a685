"""How low a budget can go: the smallest feasible one against the largest single op's working set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.common.examples import EXAMPLES, run_worker, sized
from benchmarks.common.result import Result, Row, Table, mb

FACTORS = (1.0, 1.01, 1.02, 1.03, 1.05, 1.08, 1.10, 1.15, 1.25)


def smallest(example: str, steps: int) -> Row:
    """Return the first factor of the largest working set at which the example trains, from the first op on.

    The factor is None if none does; `errors` are of those below it. Sizes are in bytes.
    """
    facts = run_worker(example, sized(example, steps), "100%", tier="ram")["trace"]
    working_set, errors = facts["largest_working_set"], []
    row = {"example": example, "trace_peak": facts["peak"], "working_set": working_set, "factor": None}
    for factor in FACTORS:
        run = run_worker(example, sized(example, steps), int(working_set * factor), tier="ram")
        if not run["error"]:
            row |= {"factor": factor, "peak_footprint": run["stats"]["peak_footprint_bytes"]}
            break
        errors.append(run["error"])
    return row | {"errors": errors}


def table(rows: list[Row]) -> Table:
    """Return one row an example: peak, largest working set, smallest budget."""
    lines = []
    for row in rows:
        least = row["factor"] * row["working_set"] if row["factor"] else None
        tail = [mb(least), f"{row['factor']:.2f}", f"{least / row['trace_peak']:.0%}"] if least else ["", "> 1.25", ""]
        lines.append([row["example"], mb(row["trace_peak"]), mb(row["working_set"]), *tail])
    columns = ["example", "peak", "largest working set", "smallest budget", "/ working set", "/ peak"]
    return Table("How low", columns, lines)


def run(*, examples: Sequence[str] = tuple(EXAMPLES), steps: int = 4) -> Iterator[Result]:
    """Try each example."""
    rows = [smallest(example, steps) for example in examples]
    yield Result("how_low", rows, [table(rows)])

"""How low a budget can go: the smallest feasible one against the largest single op's working set."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NotRequired, TypedDict

from benchmarks.common.examples import add_examples, run_worker, sized
from benchmarks.common.result import Result, Table, mb

FACTORS = (1.0, 1.01, 1.02, 1.03, 1.05, 1.08, 1.10, 1.15, 1.25)


class Row(TypedDict):
    """`factor` of the working set is the first that trains; None if none does."""

    example: str
    trace_peak: int
    working_set: int
    factor: float | None
    peak_footprint: NotRequired[int]
    errors: list[str]


def smallest(example: str, steps: int) -> Row:
    """Return the first factor of the largest working set at which the example trains, from the first op on."""
    facts = run_worker(example, sized(example, steps), "100%", tier="ram")
    peak, working_set = facts["trace_peak"], facts["largest_working_set"]
    errors: list[str] = []
    for factor in FACTORS:
        run = run_worker(example, sized(example, steps), int(working_set * factor), tier="ram")
        if not run["error"]:
            return Row(example=example, trace_peak=peak, working_set=working_set, factor=factor,
                       peak_footprint=run["peak_footprint"], errors=errors)  # fmt: skip
        errors.append(run["error"])
    return Row(example=example, trace_peak=peak, working_set=working_set, factor=None, errors=errors)


def table(rows: list[Row]) -> Table:
    """Return one row an example: peak, largest working set, smallest budget."""
    lines = []
    for row in rows:
        least = row["factor"] * row["working_set"] if row["factor"] else None
        tail = [mb(least), f"{row['factor']:.2f}", f"{least / row['trace_peak']:.0%}"] if least else ["", "> 1.25", ""]
        lines.append([row["example"], mb(row["trace_peak"]), mb(row["working_set"]), *tail])
    columns = ["example", "peak", "largest working set", "smallest budget", "/ working set", "/ peak"]
    return Table("How low", columns, lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    add_examples(parser, steps=4)


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Try each example."""
    rows = [smallest(example, args.steps) for example in args.examples]
    yield Result("how_low", rows, [table(rows)])

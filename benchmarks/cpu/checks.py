"""What it costs to compare a storage's bytes with its copy's before the copy is trusted: a share of the step time.

Each example on the disk tier, at shares of its peak that it can be trained at; steps of the last half count. One thread
of kernels. The physical limit is the speed at which one core reads memory, measured beside.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import TypedDict

import torch

from benchmarks.common.examples import add_examples, run_worker, sized
from benchmarks.common.result import Result, Table, grouped


class Row(TypedDict):
    """The last half of an example's steps at one budget."""

    example: str
    budget: str
    seconds: float
    check_seconds: float
    bytes_checked: int
    bytes_out: int


class Figures(TypedDict):
    """What the file holds."""

    memory_gb_per_s: float
    steps: int
    rows: list[Row]


def memory_gb_per_s() -> float:
    """Return how fast one core reads memory: the best of several sums over 256 MiB."""
    values, best = torch.ones(1 << 26), 0.0
    for _ in range(5):
        started = time.perf_counter()
        values.sum()
        best = max(best, values.nbytes / (time.perf_counter() - started) / 1e9)
    return best


def measure(name: str, budget: str, steps: int) -> Row | None:
    """Return figures of the last half of the steps; None where the budget cannot be met."""
    run = run_worker(name, sized(name, steps), budget, tier="disk", threads=1)
    rows = run["steps"]
    if run["error"] or len(rows) < 4:
        return None
    first, last = rows[len(rows) // 2], rows[-1]
    return Row(
        example=name,
        budget=budget,
        seconds=last["at"] - first["at"],
        check_seconds=(last["check_ns"] - first["check_ns"]) / 1e9,
        bytes_checked=last["checked"] - first["checked"],
        bytes_out=last["bytes_out"] - first["bytes_out"],
    )


def table(figures: Figures) -> Table:
    """Return what hashing cost: each example's budgets, as a share of the step."""
    budgets = list(dict.fromkeys(row["budget"] for row in figures["rows"]))
    lines = []
    for example, rows in grouped(figures["rows"]).items():
        cells = {row["budget"]: f"{row['check_seconds'] / row['seconds']:.2%}" for row in rows}
        speed = sum(row["bytes_checked"] for row in rows) / sum(row["check_seconds"] for row in rows) / 1e9
        lines.append([example, *(cells.get(budget, "infeasible") for budget in budgets), f"{speed:.1f} GB/s"])
    columns = ["example", *budgets, f"hashed at (memory is read at {figures['memory_gb_per_s']:.0f} GB/s)"]
    return Table("Fingerprints compared on the way out, of the step time", columns, lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    add_examples(parser, steps=14)
    parser.add_argument("--budgets", nargs="+", default=["80%", "50%", "30%"])


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Measure each example at each budget."""
    torch.set_num_threads(1)
    memory = memory_gb_per_s()
    found = [measure(name, budget, args.steps) for name in args.examples for budget in args.budgets]
    rows = [row for row in found if row is not None]
    figures = Figures(memory_gb_per_s=memory, steps=args.steps, rows=rows)
    shares = [row["check_seconds"] / row["seconds"] for row in rows]
    note = f"median {statistics.median(shares):.2%}, highest {max(shares):.2%} of the step time"
    yield Result("checks", figures, [table(figures)], [note])

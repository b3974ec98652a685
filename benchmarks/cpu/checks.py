"""What it costs to compare a storage's bytes with its copy's before the copy is trusted: a share of the step time.

Each example on the disk tier, at shares of its peak that it can be trained at; steps of the last half count. One thread
of kernels. The physical limit is the speed at which one core reads memory, measured beside.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.common.examples import EXAMPLES, done_between, run_worker, sized
from benchmarks.common.result import Result, Row, Table, grouped
from benchmarks.common.timing import ns_a_call


def memory_gb_per_s() -> float:
    """Return how fast one core reads memory: the best of several sums over 256 MiB."""
    values = torch.ones(1 << 26)
    return max(values.nbytes / ns_a_call(values.sum, 1) for _ in range(5))


def measure(name: str, budget: str, steps: int) -> Iterator[Row]:
    """Yield figures of the last half of the steps; none where the budget cannot be met."""
    run = run_worker(name, sized(name, steps), budget, tier="disk", threads=1)
    rows = run["steps"]
    if run["error"] or len(rows) < 4:
        return
    first, last = rows[len(rows) // 2], rows[-1]
    yield {
        "example": name,
        "budget": budget,
        "seconds": last["at"] - first["at"],
        "check_seconds": done_between(first, last, "check_ns") / 1e9,
        "bytes_checked": done_between(first, last, "bytes_checked"),
        "bytes_out": done_between(first, last, "bytes_out"),
    }


def table(figures: dict[str, Any]) -> Table:
    """Return what hashing cost: each example's budgets, as a share of the step."""
    budgets = list(dict.fromkeys(row["budget"] for row in figures["rows"]))
    lines = []
    for example, rows in grouped(figures["rows"]).items():
        cells = {row["budget"]: f"{row['check_seconds'] / row['seconds']:.2%}" for row in rows}
        speed = sum(row["bytes_checked"] for row in rows) / sum(row["check_seconds"] for row in rows) / 1e9
        lines.append([example, *(cells.get(budget, "infeasible") for budget in budgets), f"{speed:.1f} GB/s"])
    columns = ["example", *budgets, f"hashed at (memory is read at {figures['memory_gb_per_s']:.0f} GB/s)"]
    return Table("Fingerprints compared on the way out, of the step time", columns, lines)


def run(
    *, examples: Sequence[str] = tuple(EXAMPLES), steps: int = 14, budgets: Sequence[str] = ("80%", "50%", "30%")
) -> Iterator[Result]:
    """Measure each example at each budget."""
    torch.set_num_threads(1)
    memory = memory_gb_per_s()
    rows = [row for name in examples for budget in budgets for row in measure(name, budget, steps)]
    shares = [row["check_seconds"] / row["seconds"] for row in rows]
    note = f"median {statistics.median(shares):.2%}, highest {max(shares):.2%} of the step time"
    figures = {"memory_gb_per_s": memory, "steps": steps, "rows": rows}
    yield Result("checks", figures, [table(figures)], [note])

"""A table of embeddings of eight times the budget, mapped: a step's time against plain, bytes moved against rows used.

A recommender (`benchmarks/common/recommender.py`) is trained plainly, with the table in memory, and in sessions, in
which it stays in the tier. All are there at once and take turns of six steps. Counted is the second half of the steps.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.common import recommender
from benchmarks.common.examples import MEMFIT, Run, Worker, done_between
from benchmarks.common.in_turn import run_in_turn
from benchmarks.common.result import Result, Row, Table, mb
from benchmarks.cpu.moves import iterations_by_turn, slower_by_turn

LIMIT = 2.0
"""Of the time of a plain step, and of the bytes of the rows that a step uses, in and out."""
FLOAT_BYTES = 4


class Case(NamedTuple):
    """Sizes of the recommender, and how it is trained."""

    rows: int
    width: int
    samples: int
    fields: int
    optimizer: str = "sgd"
    hidden: int = 512

    @property
    def table_bytes(self) -> int:
        return self.rows * self.width * FLOAT_BYTES

    @property
    def tables(self) -> int:
        """Return how many there are: the optimizer's two beside the model's."""
        return 3 if self.optimizer == "sparse_adam" else 1

    @property
    def steps_an_iteration(self) -> int:
        return 2 if self.optimizer == "sparse_adam" else 1

    def arguments(self, steps: int) -> list[str]:
        sizes = {**self._asdict(), "steps": steps}
        return [text for name, value in sizes.items() for text in (f"--{name}", str(value))]

    def bytes_used(self, steps: range) -> float:
        """Return the bytes of the rows that a step uses, each once in and once out."""
        used = [len(np.unique(recommender.draws(self.rows, self.samples, self.fields, step))) for step in steps]
        return 2 * self.tables * self.width * FLOAT_BYTES * statistics.mean(used)


CASES = {
    "4 KiB": Case(1 << 17, 1024, samples=512, fields=4),
    "2 KiB": Case(1 << 18, 512, samples=1024, fields=4),
    "512 B": Case(1 << 21, 128, samples=1024, fields=8),
    "4 KiB, SparseAdam": Case(1 << 17, 1024, samples=512, fields=4, optimizer="sparse_adam"),
}


def measure(name: str, case: Case, steps: int, tiers: Sequence[str], verifies: bool) -> Iterator[Row]:
    """Yield one row a tier; sizes in bytes."""
    script, budget = recommender.__file__, case.table_bytes // 8
    arguments = case.arguments(steps)
    workers = {"plain": Worker(script, arguments, "plain")}
    workers |= {tier: Worker(script, arguments, budget, {"tier": tier, "plan": False, "map": "auto"}) for tier in tiers}
    runs = run_in_turn(workers)
    for tier in tiers:
        equal = is_equal(script, case.arguments(3), budget, tier) if verifies else None
        row = {"case": name, "tier": tier, "budget": budget, "table": case.table_bytes * case.tables, "equal": equal}
        yield row | {"error": runs[tier]["error"]} | figures(case, runs[tier], runs["plain"], steps // 2)


def is_equal(script: str, arguments: Sequence[str], budget: int, tier: str) -> bool:
    """Return whether `memfit verify` finds every bit equal."""
    with tempfile.TemporaryDirectory() as folder:
        where = f"disk:{folder}" if tier == "disk" else tier
        command = [*MEMFIT, "verify", script, "--budget", str(budget), "--tier", where, "--json", "--", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.startswith("{") and bool(json.loads(done.stdout)["equal"])


def figures(case: Case, run: Run, plain: Run, counted_from: int) -> Row:
    """Return time and bytes of a step, of those that count."""
    if run["error"]:
        return {}
    a_step = case.steps_an_iteration
    first, last = run["steps"][counted_from * a_step], run["steps"][-1]
    steps = (len(run["steps"]) - 1) / a_step - counted_from
    turns = [iterations_by_turn(each["steps"][counted_from * a_step :], a_step) for each in (run, plain)]
    used = case.bytes_used(range(counted_from, len(run["steps"]) // a_step))
    moved = done_between(first, last, "mapped_bytes_in", "mapped_bytes_out") / steps
    return {
        "plain_ms": 1e3 * statistics.median(seconds for turn in turns[1] for seconds in turn),
        "time_ratio": statistics.median(slower_by_turn(*turns)),
        "used": used,
        "moved": moved,
        "bytes_ratio": moved / used,
        "copied": done_between(first, last, "bytes_in", "bytes_out") / steps,
        "faults": done_between(first, last, "faults") / steps,
        "fault_ms": done_between(first, last, "fault_ns") / steps / 1e6,
        "footprint": run["stats"]["peak_footprint_bytes"],
        "frames": run["stats"]["peak_frame_bytes"],
    }


def table(rows: Sequence[Row]) -> Table:
    """Return one row a case and tier."""
    columns = ["rows of", "tier", "budget", "tables", "bits", "plain step", "step / plain", "limit",
               "bytes of rows a step", "moved", "moved / rows", "faults a step", "most in memory"]  # fmt: skip
    return Table("Tables of embeddings", columns, [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    bits = {True: "equal", False: "NOT EQUAL", None: ""}[row["equal"]]
    head = [row["case"], row["tier"], mb(row["budget"]), mb(row["table"]), bits]
    if row["error"]:
        return [*head, "infeasible", *[""] * 7]
    return [*head, f"{row['plain_ms']:.0f} ms", f"{row['time_ratio']:.2f}x", f"{row['time_ratio'] / LIMIT:.0%}",
            mb(row["used"]), mb(row["moved"]), f"{row['bytes_ratio']:.2f}x", f"{row['faults']:.0f}",
            mb(row["footprint"])]  # fmt: skip


def run(
    *,
    cases: Sequence[str] = tuple(CASES),
    steps: int = 36,
    tiers: Sequence[str] = ("ram", "disk"),
    verifies: bool = False,
) -> Iterator[Result]:
    """Train each case in memory and mapped."""
    rows = [row for name in cases for row in measure(name, CASES[name], steps, tiers, verifies)]
    yield Result("tables", rows, [table(rows)])

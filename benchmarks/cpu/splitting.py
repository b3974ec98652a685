"""How low a budget can go when ops that do not fit run in slices, and what that costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks.common.examples import EXAMPLES, run_worker, sized
from benchmarks.common.result import Result, Row, Table, mb

SHARES = (1.03, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1)
"""Of the largest working set."""


@contextmanager
def answers_kept() -> Iterator[None]:
    """Let runs know what slices an earlier one has tried: the file of answers is where plans are kept."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, MEMFIT_PLAN_CACHE=folder):
        yield


def floors(example: str, steps: int) -> Row:
    """Return the smallest share of the largest working set at which it trains, without slices and with them."""
    script = sized(example, steps)
    facts = run_worker(example, script, "100%", tier="ram")["trace"]
    row: Row = {"example": example, "trace_peak": facts["peak"], "working_set": facts["largest_working_set"]}
    with answers_kept():
        run_worker(example, sized(example, 2), None, tier="ram", split="try")
        for split in ("never", "auto"):
            row[split] = least_of(example, script, facts["largest_working_set"], split)
    return row


def least_of(example: str, arguments: list[str], working_set: int, split: str) -> Row | None:
    """Return the smallest of the shares at which it trains, and the run's statistics."""
    least = None
    for share in SHARES:
        run = run_worker(example, arguments, int(working_set * share), tier="ram", split=split)
        if run["error"]:
            break
        least = {"share": share, "stats": run["stats"]}
    return least


def loss(rows: int, classes: int, budget: float | None) -> Row:
    """Train a loss of many classes within a share of its scores' bytes (None: plainly)."""
    import torch

    import memfit

    def step(scores: torch.Tensor, target: torch.Tensor) -> float:
        value = torch.nn.functional.cross_entropy(scores, target)
        value.backward()
        return value.item()

    def steps(record: Callable[[float], None]) -> list[float]:
        target = torch.arange(rows) * 7 % classes
        values = []
        for seed in range(3):
            scores = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            began = time.perf_counter()
            values.append(step(scores, target))
            record(time.perf_counter() - began)
        return values

    seconds: list[float] = []
    if budget is None:
        return {"losses": steps(seconds.append), "seconds": min(seconds)}
    size = rows * classes * 4
    with memfit.session(None, "ram", plan=False):
        steps(lambda _: None)
    with memfit.session(int(size * budget), "ram", plan=False) as session:
        values = steps(seconds.append)
    stats: dict[str, Any] = {name: getattr(session.stats, name) for name in _FIGURES}
    return {"losses": values, "seconds": min(seconds), "stats": stats, "scores_bytes": size, "budget": budget}


_FIGURES = ("peak_footprint_bytes", "split_ops", "slices", "slice_bytes_in", "slice_bytes_out", "bytes_in", "bytes_out")


def table(rows: Sequence[Row]) -> Table:
    """Return one row an example: its largest working set, and the smallest budgets."""
    lines = []
    for row in rows:
        cells = [f"{row[split]['share']:.0%}" if row[split] else "none" for split in ("never", "auto")]
        lines.append([row["example"], mb(row["trace_peak"]), mb(row["working_set"]), *cells])
    return Table("Slices", ["example", "peak", "largest working set", "smallest, whole", "smallest, in slices"], lines)


def table_of_loss(rows: Sequence[Row]) -> Table:
    """Return one row a budget: time against plain, and what slices moved against the scores' bytes."""
    lines = []
    for row in rows:
        if "stats" not in row:
            lines.append(["plain", f"{row['seconds']:.2f} s", "", "", ""])
            continue
        stats, same = row["stats"], "equal" if row["losses"] == rows[0]["losses"] else "DIFFERENT"
        per_step = [f"{stats[name] / 3 / row['scores_bytes']:.2f}" for name in ("slice_bytes_in", "slice_bytes_out")]
        lines.append([f"{row['budget']:.2f}", f"{row['seconds']:.2f} s", same, *per_step])
    columns = ["budget / scores", "step", "losses", "read by slices / scores", "written / scores"]
    return Table("A loss of many classes", columns, lines)


def run(
    *, examples: Sequence[str] = tuple(EXAMPLES), steps: int = 4, rows: int = 1024, classes: int = 32768
) -> Iterator[Result]:
    """Try each example, then a loss of many classes."""
    losses = [loss(rows, classes, budget) for budget in (None, 2.5, 1.5, 1.1)]
    yield Result("splitting_loss", losses, [table_of_loss(losses)])
    found = [floors(example, steps) for example in examples]
    yield Result("splitting", found, [table(found)])

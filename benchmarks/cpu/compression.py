"""The disk tier with and without compression: what is left of each category's bytes, and what a step takes.

Shares: an iteration of each example, at half of its peak in bytes, on a disk so slow that every codec pays. Times: each
example at half of its peak on the disk as it is, both ways in turn, beside each other; the later half of the steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.common.examples import EXAMPLES, Run, Worker, done_between, run_worker, sized
from benchmarks.common.in_turn import run_in_turn
from benchmarks.common.result import Result, Row, Table, mb

_SLOW = 1e8  # bytes a second
_WAYS = {"raw": "disk", "compressed": "disk,compress"}


def shares(example: str) -> Row:
    """Return what was written of the storages that left in one iteration, by category."""
    arguments = sized(example, 4, EXAMPLES)
    peak = run_worker(example, arguments, "100%")["trace"]["peak"]
    found = run_worker(example, arguments, peak // 2, tier="disk,compress", link=_SLOW)
    return {"example": example, "error": found["error"], "stored": found["trace"].get("stored", {})}


def times(example: str, budget: str, steps: int, link: float) -> Row:
    """Return the steps of both ways, of the same turns."""
    options = {"waits": True, "threads": 1, "link": link, "map": "auto", "split": "auto"}
    workers = {
        way: Worker(example, sized(example, steps, EXAMPLES), budget, {**options, "tier": tier})
        for way, tier in _WAYS.items()
    }
    runs = run_in_turn(workers)
    row: Row = {
        "example": example,
        "budget": budget,
        "link": link,
        "seconds": {},
        "moved": {},
        "written": {},
        "read": {},
    }
    for way, run in runs.items():
        first, last = run["steps"][steps // 2], run["steps"][-1]
        row["seconds"][way] = _median_step(run, steps // 2)
        row["moved"][way] = done_between(first, last, "bytes_out", "bytes_in")
        row["written"][way] = done_between(first, last, "bytes_stored") / max(done_between(first, last, "bytes_out"), 1)
        row["read"][way] = done_between(first, last, "bytes_loaded") / max(done_between(first, last, "bytes_in"), 1)
    return row


def _median_step(run: Run, skip: int) -> float:
    steps: list[float] = [b["at"] - a["at"] for a, b in pairwise(run["steps"][skip:]) if not a["stopped"]]
    return statistics.median(steps)


def share_table(rows: Sequence[Row]) -> Table:
    """Return one row a category of an example."""
    cells = [
        [row["example"], category, mb(size), f"{stored / size:.2f}"]
        for row in rows
        for category, (size, stored) in row["stored"].items()
    ]
    return Table("Bytes left of what leaves, on a slow disk", ["example", "category", "bytes", "left"], cells)


def time_table(rows: Sequence[Row]) -> Table:
    """Return one row an example and disk."""
    cells = [
        [
            row["example"],
            f"{row['link'] / 1e6:.0f} MB/s" if row["link"] else "as it is",
            mb(row["moved"]["raw"]),
            f"{row['written']['compressed']:.2f}",
            f"{row['read']['compressed']:.2f}",
            f"{row['seconds']['compressed'] / row['seconds']['raw']:.2f}",
        ]
        for row in rows
    ]
    columns = ["example", "disk", "moved", "written / out", "read / in", "step / raw"]
    return Table("The compressed disk tier at half of the peak", columns, cells)


def run(
    *,
    examples: Sequence[str] = ("decoder", "resnet", "unet"),
    timed: Sequence[str] = ("resnet", "vgg", "unet"),
    links: Sequence[float] = (0.0, 3e8),
    budget: str = "50%",
    steps: int = 36,
) -> Iterator[Result]:
    """Measure shares and times."""
    left = [shares(example) for example in examples]
    yield Result("compression", left, [share_table(left)])
    taken = [times(example, budget, steps, link) for example in timed for link in links]
    yield Result("compression_steps", taken, [time_table(taken)])

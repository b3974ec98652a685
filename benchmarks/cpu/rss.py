"""What the operating system sees: peak RSS of a plain run against one under a budget in bytes, disk tier.

The budget holds from the first op, so the arena saves (plain peak of live tensors - budget); the process's
peak RSS must fall by nearly as much.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TypedDict

from benchmarks.common.examples import LARGE, add_examples, median_step, run_worker, sized
from benchmarks.common.result import Result, Table, mb


class Row(TypedDict):
    """Bytes of tensors and of processes. `saved_share`: the fall in RSS over what the arena saved."""

    example: str
    peak_live: int
    budget: int
    arena_peak: int
    plain_rss: int
    limited_rss: int
    saved_share: float
    time_ratio: float


def measure(example: str, share: float, steps: int) -> Row:
    """Return both runs' figures for one example."""
    arguments = sized(example, steps, LARGE)
    plain = run_worker(example, arguments, "plain")
    peak = run_worker(example, arguments, "100%", tier="disk")["trace_peak"]
    limited = run_worker(example, arguments, int(peak * share), tier="disk")
    if limited["error"]:
        raise SystemExit(limited["error"])
    saved_arena = peak - limited["peak_footprint"]
    return Row(
        example=example,
        peak_live=peak,
        budget=limited["budget"],
        arena_peak=limited["peak_footprint"],
        plain_rss=plain["peak_rss_bytes"],
        limited_rss=limited["peak_rss_bytes"],
        saved_share=(plain["peak_rss_bytes"] - limited["peak_rss_bytes"]) / saved_arena,
        time_ratio=median_step(limited, 1) / median_step(plain, 1),
    )


def table(rows: list[Row]) -> Table:
    """Return one row an example: tensors, process, and what of the arena's saving the process shows."""
    lines = [[row["example"], mb(row["peak_live"]), mb(row["arena_peak"]), mb(row["plain_rss"]), mb(row["limited_rss"]),
              f"{row['saved_share']:.0%}", f"{row['time_ratio']:.2f}x"] for row in rows]  # fmt: skip
    columns = ["example", "peak of tensors", "arena peak", "RSS, plain", "RSS, in budget", "RSS / arena saved", "time"]
    return Table("Peak RSS", columns, lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    add_examples(parser, steps=3, examples=["decoder"])
    parser.add_argument("--share", type=float, default=0.5)


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Measure each example."""
    rows = [measure(example, args.share, args.steps) for example in args.examples]
    yield Result("rss", rows, [table(rows)])

"""What memfit's own records take: bytes an op of an iteration, kept while a plan is in force, and the process's RSS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.examples import done_between, run_worker
from benchmarks.common.result import Result, Row, Table, mb

_CHAIN = str(Path(__file__).with_name("_chain.py"))


def measure(layers: int, steps: int) -> Row:
    """Return what a program of `layers` layers takes with memfit, and how much more than without; sizes in bytes."""
    plain, governed = (run_worker(_CHAIN, [str(layers), str(steps)], budget) for budget in ("plain", None))
    before, last = governed["steps"][-2:]
    ops, kept = done_between(before, last, "ops"), last["record_bytes"]
    rss, peak_rss = last["rss_bytes"], governed["peak_rss_bytes"]
    return {
        "layers": layers,
        "rss": rss,
        "peak_rss": peak_rss,
        "record_bytes": kept,
        "ops": ops,
        "plans": last["plans"],
        "more_rss": rss - plain["steps"][-1]["rss_bytes"],
        "more_peak_rss": peak_rss - plain["peak_rss_bytes"],
        "record_bytes_per_op": kept / ops,
    }


def table(rows: list[Row]) -> Table:
    """Return the bytes of memfit's own records for each length of the iteration."""
    lines = [[f"{row['ops']:,}", f"{row['record_bytes_per_op']:.0f} B", mb(row["more_rss"]), mb(row["more_peak_rss"])]
             for row in rows]  # fmt: skip
    columns = ["ops of an iteration", "kept, an op", "RSS over the plain run's, at the end", "at its peak"]
    return Table("memfit's own records", columns, lines)


def run(*, layers: Sequence[int] = (100, 1000, 5000), steps: int = 12) -> Iterator[Result]:
    """Measure programs of each length."""
    rows = [measure(count, steps) for count in layers]
    yield Result("records", rows, [table(rows)])

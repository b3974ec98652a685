"""What the operating system sees: peak RSS of a plain run against one under a budget in bytes, disk tier.

The budget holds from the first op, so the arena saves (plain peak of live tensors - budget); the process's
peak RSS must fall by nearly as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.common.examples import LARGE, median_step, run_worker, sized
from benchmarks.common.result import Result, Row, Table, mb


def measure(example: str, share: float, steps: int) -> Row:
    """Return both runs' bytes, of tensors and of processes, and the fall in RSS over what the arena saved."""
    arguments = sized(example, steps, LARGE)
    plain = run_worker(example, arguments, "plain")
    peak = run_worker(example, arguments, "100%", tier="disk")["trace"]["peak"]
    limited = run_worker(example, arguments, int(peak * share), tier="disk")
    if limited["error"]:
        raise SystemExit(limited["error"])
    arena_peak, fall = limited["stats"]["peak_footprint_bytes"], plain["peak_rss_bytes"] - limited["peak_rss_bytes"]
    return {
        "example": example,
        "peak_live": peak,
        "budget": limited["stats"]["budget_bytes"],
        "arena_peak": arena_peak,
        "plain_rss": plain["peak_rss_bytes"],
        "limited_rss": limited["peak_rss_bytes"],
        "saved_share": fall / (peak - arena_peak),
        "time_ratio": median_step(limited, 1) / median_step(plain, 1),
    }


def table(rows: list[Row]) -> Table:
    """Return one row an example: tensors, process, and what of the arena's saving the process shows."""
    lines = [[row["example"], mb(row["peak_live"]), mb(row["arena_peak"]), mb(row["plain_rss"]), mb(row["limited_rss"]),
              f"{row['saved_share']:.0%}", f"{row['time_ratio']:.2f}x"] for row in rows]  # fmt: skip
    columns = ["example", "peak of tensors", "arena peak", "RSS, plain", "RSS, in budget", "RSS / arena saved", "time"]
    return Table("Peak RSS", columns, lines)


def run(*, examples: Sequence[str] = ("decoder",), steps: int = 3, share: float = 0.5) -> Iterator[Result]:
    """Measure each example, inside a share of its peak."""
    rows = [measure(example, share, steps) for example in examples]
    yield Result("rss", rows, [table(rows)])

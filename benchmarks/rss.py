"""What the operating system sees: peak RSS of a plain run against one under a budget in bytes, disk tier.

The budget holds from the first op, so the arena saves (plain peak of live tensors - budget); the process's
peak RSS must fall by nearly as much.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from common import run_worker, save, show, step_seconds

LARGE: dict[str, list[str]] = {
    "decoder": ["--layers", "12", "--width", "384", "--batch", "16"],
    "resnet": ["--batch", "2048"],
    "vgg": ["--depth", "16", "--batch", "1280", "--eval-every", "0"],
}


def measure(example: str, share: float, steps: int) -> dict[str, Any]:
    """Return both runs' figures for one example."""
    arguments = [*LARGE[example], "--steps", str(steps)]
    plain = run_worker(example, arguments, "plain")
    peak = run_worker(example, arguments, "100%", tier="disk")["trace_peak"]
    limited = run_worker(example, arguments, int(peak * share), tier="disk")
    if limited["error"]:
        raise SystemExit(limited["error"])
    saved_arena = peak - limited["peak_footprint"]
    saved_rss = plain["peak_rss_bytes"] - limited["peak_rss_bytes"]
    return {
        "example": example, "peak_live": peak, "budget": limited["budget"], "arena_peak": limited["peak_footprint"],
        "plain_rss": plain["peak_rss_bytes"], "limited_rss": limited["peak_rss_bytes"],
        "saved_share": saved_rss / saved_arena,
        "time_ratio": statistics.median(step_seconds(limited, 1)) / statistics.median(step_seconds(plain, 1)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=["decoder"])
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    rows = [measure(example, args.share, args.steps) for example in args.examples]
    columns = ["example", "peak of tensors", "arena peak", "plain RSS", "RSS in budget", "saved / arena saved", "time"]
    show("Peak RSS (MB)", columns, [line(row) for row in rows])
    save("rss", rows)


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    sizes = [f"{row[key] / 1e6:.0f}" for key in ("peak_live", "arena_peak", "plain_rss", "limited_rss")]
    return [row["example"], *sizes, f"{row['saved_share']:.1%}", f"{row['time_ratio']:.2f}x"]


if __name__ == "__main__":
    main()

"""What a budget costs: step time against the plain run, and bytes moved against a clairvoyant policy's.

The clairvoyant policy knows the whole iteration and evicts what is needed furthest in the future; it has no
fragmentation. Bytes are those of the steady iterations (the last half of the steps).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from common import EXAMPLES, run_worker, save, show, step_seconds


def measure(example: str, percents: list[str], tier: str, steps: int) -> list[dict[str, Any]]:
    """Return one row a budget for one example."""
    arguments = [*EXAMPLES[example], "--steps", str(steps)]
    plain = statistics.median(step_seconds(run_worker(example, arguments, "plain"), steps // 2))
    facts = run_worker(example, arguments, "100%", tier=tier)
    smallest = -(-facts["minimum"] * 103 // 100)
    rows = []
    for budget in [*percents, smallest]:
        result = run_worker(example, arguments, budget, tier=tier)
        row = {"example": example, "tier": tier, "share": budget if isinstance(budget, str) else "smallest",
               "minimum": facts["minimum"], "trace_peak": facts["trace_peak"], "error": result["error"]}  # fmt: skip
        if not result["error"]:
            row |= figures(result, plain, steps)
        rows.append(row)
    return rows


def figures(result: dict[str, Any], plain: float, steps: int) -> dict[str, Any]:
    """Return time and bytes of the steady iterations."""
    skip = steps // 2
    first, last = result["steps"][skip], result["steps"][-1]
    # A GAN takes two optimizer steps an iteration; per op, both policies are counted alike.
    iterations = (last["ops"] - first["ops"]) / result["ops"]
    moved = (last["bytes_out"] - first["bytes_out"] + last["bytes_in"] - first["bytes_in"]) / iterations
    best = result["clairvoyant_out"] + result["clairvoyant_in"]
    return {
        "budget": result["budget"], "peak_footprint": result["peak_footprint"],
        "time_ratio": statistics.median(step_seconds(result, skip)) / plain,
        "moved": moved, "clairvoyant": best, "moved_ratio": moved / best if best else None,
        "relocated": (last["relocated"] - first["relocated"]) / iterations,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--budgets", default="80%,50%,30%")
    parser.add_argument("--tier", default="disk")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    rows = [row for e in args.examples for row in measure(e, args.budgets.split(","), args.tier, args.steps)]
    columns = ["example", "budget", "of peak", "step time / plain", "MB moved / step", "clairvoyant MB", "ratio"]
    show("Cost of a budget", columns, [line(row) for row in rows])
    save("traffic", rows)


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    if row["error"]:
        return [row["example"], row["share"], "-", "infeasible", "", "", f"minimum {row['minimum'] / 1e6:.1f} MB"]
    ratio = "-" if row["moved_ratio"] is None else f"{row['moved_ratio']:.2f}"
    return [row["example"], f"{row['budget'] / 1e6:.1f} MB ({row['share']})",
            f"{row['budget'] / row['trace_peak']:.0%}", f"{row['time_ratio']:.2f}", f"{row['moved'] / 1e6:.1f}",
            f"{row['clairvoyant'] / 1e6:.1f}", ratio]  # fmt: skip


if __name__ == "__main__":
    main()

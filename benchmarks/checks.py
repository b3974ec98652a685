"""What it costs to compare a storage's bytes with its copy's before the copy is trusted: a share of the step time.

Each example on the disk tier, at shares of its peak that it can be trained at; steps of the last half count. One thread
of kernels. The physical limit is the speed at which one core reads memory, measured beside.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from common import EXAMPLES, run_worker, save, show


def memory_gb_per_s() -> float:
    """Return how fast one core reads memory: the best of several sums over 256 MiB."""
    values, best = torch.ones(1 << 26), 0.0
    for _ in range(5):
        started = time.perf_counter()
        values.sum()
        best = max(best, values.nbytes / (time.perf_counter() - started) / 1e9)
    return best


def measure(name: str, budget: str, steps: int) -> dict[str, Any] | None:
    """Return figures of the last half of the steps; None where the budget cannot be met."""
    result = run_worker(name, [*EXAMPLES[name], "--steps", str(steps)], budget, tier="disk", threads=1)
    rows = result["steps"]
    if result["error"] or len(rows) < 4:
        return None
    first, last = rows[len(rows) // 2], rows[-1]
    seconds = last["at"] - first["at"]
    check = (last["check_ns"] - first["check_ns"]) / 1e9
    checked = last["checked"] - first["checked"]
    return {"example": name, "budget": budget, "seconds": seconds, "check_seconds": check, "bytes_checked": checked,
            "bytes_out": last["bytes_out"] - first["bytes_out"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--budgets", nargs="+", default=["80%", "50%", "30%"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory = memory_gb_per_s()
    found = [measure(name, budget, args.steps) for name in EXAMPLES for budget in args.budgets]
    rows = [row for row in found if row is not None]
    lines = [
        [row["example"], row["budget"], f"{row['check_seconds'] / row['seconds']:.2%}",
         f"{row['bytes_checked'] / 1e6:.1f}", f"{row['bytes_out'] / 1e6:.1f}",
         f"{row['bytes_checked'] / max(row['check_seconds'], 1e-9) / 1e9:.1f}"]
        for row in rows
    ]  # fmt: skip
    columns = ["example", "budget", "of the step time", "MB compared", "MB copied out", "GB/s"]
    show(f"Fingerprints compared on the way out (memory is read at {memory:.1f} GB/s)", columns, lines)
    shares = [row["check_seconds"] / row["seconds"] for row in rows]
    print(f"median {statistics.median(shares):.2%}, highest {max(shares):.2%} of the step time")
    save("checks", {"memory_gb_per_s": memory, "steps": args.steps, "rows": rows})


if __name__ == "__main__":
    main()

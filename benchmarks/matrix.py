"""Bit-identity: every example x budgets x tiers, each a plain and a limited run compared hash by hash."""

from __future__ import annotations

import argparse
from typing import Any

from common import EXAMPLES, ROOT, run_worker, save, show

from memfit.running.engine.tiers import parse_tier
from memfit.running.scripts.verify import verify


def measure(example: str, budget: str, tier: str, steps: int) -> dict[str, Any]:
    """Return one verdict as a row."""
    verdict = verify(str(ROOT / "examples" / f"{example}.py"), EXAMPLES[example], budget, parse_tier(tier), steps)
    stats = verdict.limited.stats or {}
    return {
        "example": example, "tier": tier, "equal": verdict.difference is None, "steps": verdict.steps,
        "hashes": sum(verdict.compared.values()), "difference": str(verdict.difference or ""),
        "budget": stats["budget_bytes"], "peak": stats["peak_footprint_bytes"],
        "holds": stats["peak_footprint_bytes"] <= stats["budget_bytes"],
    }  # fmt: skip


def rows_of(example: str, shares: list[float], tiers: list[str], steps: int) -> list[dict[str, Any]]:
    """Return a row for each feasible share and the smallest feasible budget, on each tier."""
    facts = run_worker(example, [*EXAMPLES[example], "--steps", "3"], "100%", tier="ram")
    rows = []
    for tier in tiers:
        for share in [*shares, 0.0]:
            budget = int(facts["trace_peak"] * share)
            if share and budget < facts["minimum"]:
                rows.append({"example": example, "tier": tier, "share": share, "infeasible": facts["minimum"]})
                continue
            # At the recorded minimum itself 64-byte alignment and tiny operands may lack a place: 3 % more.
            row = measure(example, str(budget or facts["minimum"] * 103 // 100), tier, steps)
            rows.append(row | {"share": share, "trace_peak": facts["trace_peak"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--tiers", default="ram,disk")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    rows = [r for e in args.examples for r in rows_of(e, [0.8, 0.5, 0.3], args.tiers.split(","), args.steps)]
    show("Bit-identity", ["example", "tier", "budget", "peak / budget", "hashes", "verdict"], [line(r) for r in rows])
    save("matrix", rows)
    if not all(row.get("infeasible") or (row["equal"] and row["holds"]) for row in rows):
        raise SystemExit("not everything is equal")


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    share = f"{row['share']:.0%}" if row["share"] else "smallest"
    if row.get("infeasible"):
        return [row["example"], row["tier"], share, "", "", f"infeasible: needs {row['infeasible'] / 1e6:.1f} MB"]
    share += f" = {row['budget'] / 1e6:.1f} MB ({row['budget'] / row['trace_peak']:.0%})"
    verdict = "equal" if row["equal"] else row["difference"]
    return [row["example"], row["tier"], share, f"{row['peak'] / row['budget']:.4f}", str(row["hashes"]), verdict]


if __name__ == "__main__":
    main()

"""Bit-identity: every example x budgets x tiers, each a plain and a limited run compared hash by hash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.common.examples import EXAMPLES, run_worker, script_of, sized
from benchmarks.common.result import Result, Row, Table, grouped
from memfit.running.engine.tiers import parse_tier
from memfit.running.scripts.verify import verify

SHARES = (0.8, 0.5, 0.3)


def measure(example: str, budget: int, tier: str, steps: int) -> Row:
    """Return one verdict as a row."""
    verdict = verify(script_of(example), EXAMPLES[example], str(budget), parse_tier(tier), steps)
    stats = verdict.limited.stats or {}
    return {
        "example": example, "tier": tier, "equal": verdict.difference is None, "steps": verdict.steps,
        "hashes": sum(verdict.compared.values()), "difference": str(verdict.difference or ""),
        "budget": stats["budget_bytes"], "peak": stats["peak_footprint_bytes"],
        "holds": stats["peak_footprint_bytes"] <= stats["budget_bytes"],
    }  # fmt: skip


def rows_of(example: str, tiers: Sequence[str], steps: int) -> Iterator[Row]:
    """Yield a row for each share and the smallest feasible budget (share 0), on each tier.

    The row of a share that is too small has at "infeasible" the bytes that are needed.
    """
    facts = run_worker(example, sized(example, 3), "100%", tier="ram")["trace"]
    for tier in tiers:
        for share in [*SHARES, 0.0]:
            budget = int(facts["peak"] * share)
            if share and budget < facts["minimum"]:
                yield {"example": example, "tier": tier, "share": share, "infeasible": facts["minimum"]}
                continue
            # At the recorded minimum itself 64-byte alignment and tiny operands may lack a place: 3 % more.
            row = measure(example, budget or facts["minimum"] * 103 // 100, tier, steps)
            yield row | {"share": share, "trace_peak": facts["peak"]}


def table(rows: list[Row]) -> Table:
    """Return one row an example: runs, hashes, how many runs were equal, how full the arena got."""
    lines = []
    for example, group in grouped(rows).items():
        ran = [row for row in group if not row.get("infeasible")]
        skipped = len(group) - len(ran)
        equal, held = (sum(row[key] for row in ran) for key in ("equal", "holds"))
        runs = f"{len(ran)}" + (f" ({skipped} infeasible)" if skipped else "")
        fullest = max(row["peak"] / row["budget"] for row in ran)
        hashes = f"{sum(row['hashes'] for row in ran):,}"
        lines.append([example, runs, hashes, f"{equal} of {len(ran)}", f"{held} of {len(ran)}", f"{fullest:.6f}"])
    columns = ["example", "runs", "hashes compared", "all equal", "budget held", "highest arena peak / budget"]
    return Table("Bit-identity", columns, lines)


def run(
    *, examples: Sequence[str] = tuple(EXAMPLES), steps: int = 4, tiers: Sequence[str] = ("ram", "disk")
) -> Iterator[Result]:
    """Compare all runs; fails if one differs or takes more than its budget."""
    rows = [row for example in examples for row in rows_of(example, tiers, steps)]
    wrong = [row for row in rows if not (row.get("infeasible") or (row["equal"] and row["holds"]))]
    notes = [f"NOT AS IT SHOULD BE: {row}" for row in wrong]
    yield Result("matrix", rows, [table(rows)], notes, exit_code=1 if wrong else 0)

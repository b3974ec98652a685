"""What a budget costs: step time against the plain run, and bytes moved against a clairvoyant policy's.

The clairvoyant policy knows the whole iteration and evicts what is needed furthest in the future; it has no
fragmentation. Bytes are those of the steady iterations (the last half of the steps).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.common.examples import EXAMPLES, Run, done_between, median_step, run_worker, sized
from benchmarks.common.result import Result, Row, Table, grouped, mb


def measure(example: str, percents: Sequence[str], tier: str, steps: int) -> Iterator[Row]:
    """Yield one row a budget for one example; one with an error has no figures."""
    arguments = sized(example, steps)
    plain_seconds = median_step(run_worker(example, arguments, "plain"), steps // 2)
    facts = run_worker(example, arguments, "100%", tier=tier)["trace"]
    budgets: dict[str, str | int] = {percent: percent for percent in percents}
    budgets["smallest"] = -(-facts["minimum"] * 103 // 100)
    for share, budget in budgets.items():
        run = run_worker(example, arguments, budget, tier=tier)
        row = {"example": example, "tier": tier, "share": share, "minimum": facts["minimum"],
               "trace_peak": facts["peak"], "error": run["error"]}  # fmt: skip
        yield row if run["error"] else row | figures(run, plain_seconds, steps // 2)


def figures(run: Run, plain_seconds: float, skip: int) -> Row:
    """Return time and bytes of the steady iterations."""
    first, last, trace = run["steps"][skip], run["steps"][-1], run["trace"]
    # A GAN takes two optimizer steps an iteration; per op, both policies are counted alike.
    iterations = done_between(first, last, "ops") / trace["ops"]
    moved = done_between(first, last, "bytes_out", "bytes_in") / iterations
    best = trace["clairvoyant_out"] + trace["clairvoyant_in"]
    return {
        "budget": run["stats"]["budget_bytes"],
        "peak_footprint": run["stats"]["peak_footprint_bytes"],
        "time_ratio": median_step(run, skip) / plain_seconds,
        "moved": moved,
        "clairvoyant": best,
        "moved_ratio": moved / best if best else None,
        "relocated": done_between(first, last, "bytes_relocated") / iterations,
    }


def table(rows: list[Row]) -> Table:
    """Return one row an example with time and traffic at each budget."""
    shares = list(dict.fromkeys(row["share"] for row in rows))
    lines = []
    for example, group in grouped(rows).items():
        found = {row["share"]: row for row in group}
        lines.append([example, mb(group[0]["trace_peak"]), *(_cell(found.get(share)) for share in shares)])
    columns = ["example", "peak", *(f"{share} + 3 %" if share == "smallest" else f"{share} of it" for share in shares)]
    return Table("Cost of a budget: step time / plain (bytes moved / clairvoyant)", columns, lines)


def _cell(row: Row | None) -> str:
    if row is None or row["error"]:
        return "infeasible" if row else ""
    moved = "nothing to move" if row["moved_ratio"] is None else f"{row['moved_ratio']:.2f}"
    share = f" at {row['budget'] / row['trace_peak']:.0%}" if row["share"] == "smallest" else ""
    return f"{row['time_ratio']:.2f}x ({moved}){share}"


def run(
    *,
    examples: Sequence[str] = tuple(EXAMPLES),
    steps: int = 10,
    budgets: Sequence[str] = ("80%", "50%", "30%"),
    tier: str = "disk",
) -> Iterator[Result]:
    """Measure each example at each budget."""
    rows = [row for example in examples for row in measure(example, budgets, tier, steps)]
    yield Result("traffic", rows, [table(rows)])

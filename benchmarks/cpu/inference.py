"""What a budget costs an inference loop: a pass's time, bytes copied in against those that must be, planned or not.

Each pass of `examples/generate.py` uses every weight and every cache once, so that at least their bytes minus the
budget come in. Budgets are in bytes, and hold while the model is made. All runs are there at once and take turns of
six passes, so that a machine whose speed drifts is the same for all; training waits for plans. The last three eighths
of the passes count, in which no plan is made anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.common.examples import Run, Worker, done_between, run_worker
from benchmarks.common.in_turn import run_in_turn
from benchmarks.common.result import Result, Row, Table, mb
from benchmarks.cpu.moves import iterations_by_turn, slower_by_turn

EXAMPLE = "generate"
_LEAST = 1.1  # of the smallest feasible budget, for holes and small storages


def measure(shares: Sequence[float], passes: int, layers: int, width: int, tier: str) -> Iterator[Row]:
    """Yield one row a budget, the last one's the smallest; one with an error has no figures."""
    arguments = ["--layers", str(layers), "--width", str(width)]
    arguments += ["--context", str(passes), "--prompt", "1"]  # all passes are alike
    facts = run_worker(EXAMPLE, [*arguments, "--steps", "3"], "100%", tier=tier, passes=True)["trace"]
    budgets = {f"{share:.0%}": int(share * facts["peak"]) for share in shares}
    budgets["smallest"] = int(_LEAST * facts["minimum"])
    counted_from = 5 * passes // 8
    options = {"passes": True, "tier": tier, "waits": True, "keeps_plans_from": counted_from}
    arguments += ["--steps", str(passes)]
    workers = {"plain": Worker(EXAMPLE, arguments, "plain", {"passes": True})}
    workers |= {name: Worker(EXAMPLE, arguments, budget, options) for name, budget in budgets.items()}
    runs = run_in_turn(workers)
    for name, budget in budgets.items():
        run = runs[name]
        row = {"share": name, "tier": tier, "budget": budget, "error": run["error"]} | facts
        yield row if run["error"] else row | figures(run, runs["plain"], counted_from)


def figures(run: Run, plain: Run, counted_from: int) -> Row:
    """Return time and bytes of the passes that count."""
    first, last = run["steps"][counted_from], run["steps"][-1]
    passes = len(run["steps"]) - 1 - counted_from
    turns = [iterations_by_turn(each["steps"][counted_from:], 1) for each in (run, plain)]
    least = max(run["trace"]["recurring"] - run["stats"]["budget_bytes"], 0)
    bytes_in = done_between(first, last, "bytes_in") / passes
    return {
        "time_ratio": statistics.median(slower_by_turn(*turns)),
        "bytes_in": bytes_in,
        "least_in": least,
        "in_ratio": bytes_in / least if least else None,
        "bytes_out": done_between(first, last, "bytes_out") / passes,
        "planned": done_between(first, last, "planned_iterations") / passes,
        "stalled_ms": done_between(first, last, "stall_ns", "copy_ns") / passes / 1e6,
        "peak_footprint": run["stats"]["peak_footprint_bytes"],
    }


def table(rows: Sequence[Row]) -> Table:
    """Return one row a budget."""
    columns = ["budget", "of the peak", "time / plain", "in a pass", "least", "in / least", "out a pass", "by plan"]
    return Table("Inference: examples/generate.py", columns, [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    head = [mb(row["budget"]), f"{row['budget'] / row['peak']:.0%}"]
    if row["error"]:
        return [*head, "infeasible", "", "", "", "", ""]
    ratio = "-" if row["in_ratio"] is None else f"{row['in_ratio']:.2f}"
    return [*head, f"{row['time_ratio']:.2f}x", mb(row["bytes_in"]), mb(row["least_in"]), ratio, mb(row["bytes_out"]),
            f"{row['planned']:.0%}"]  # fmt: skip


def run(
    *,
    shares: Sequence[float] = (0.8, 0.5, 0.25),
    passes: int = 48,
    layers: int = 8,
    width: int = 512,
    tier: str = "disk",
) -> Iterator[Result]:
    """Measure the example at each budget, and at the smallest."""
    rows = list(measure(shares, passes, layers, width, tier))
    yield Result("inference", rows, [table(rows)])

"""Plans that swap, make again, or do both, executed: step times over the plain run's, at several budgets and links.

The ram tier behind a link of a given speed. All modes of one budget and link take turns. Training waits for its plans,
so that a run of few steps has them; the steps that count are those under the last plan, its trial left out.
`torch.utils.checkpoint` is not among the modes: it keeps to no budget, the program's author says what it cuts, and it
moves the statistics of batch norms twice, so that the run would be another.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.common.examples import TIMED, Run, Sizes, median_step, run_worker, sized
from benchmarks.common.result import Result, Row, Table

PLANNED = ("swap", "recompute", "joint")
MODES = ("reactive", *PLANNED)
SIZES: Sizes = {**TIMED, "lstm": ["--width", "256", "--batch", "64"], "gan": ["--width", "64", "--batch", "128"]}


def settled_steps(run: Run) -> list[float]:
    """Return the seconds of the steps under the last plan but its first two; without a plan, those of the last half."""
    steps = run["steps"]
    seconds = [after["at"] - before["at"] for before, after in pairwise(steps)]
    changes = [i for i, (before, after) in enumerate(pairwise(steps)) if after["plans"] > before["plans"]]
    return seconds[changes[-1] + 3 :] if changes else seconds[len(seconds) // 2 :]


def measured(run: Run) -> Row:
    """Return what one run in a session did: the seconds of its steps, and facts of its last plan."""
    if run["error"]:
        return {"error": run["error"].partition("\n")[0]}
    stats, seconds = run["stats"], settled_steps(run)
    names = ("plans", "plan_mismatches", "derailments", "recomputations", "discards", "prefetches",
             "failed_recomputations", "peak_footprint_bytes", "budget_bytes")  # fmt: skip
    longest = max(after["at"] - before["at"] for before, after in pairwise(run["steps"]))
    return {"seconds": seconds, "longest_step_s": longest, "plan": run["plan"]} | {name: stats[name] for name in names}


def compare(name: str, budget: str, link: float, steps: int, repeats: int) -> Row:
    """Return the figures of an example at one budget and link (GB/s), by mode; those of the plain run are seconds."""
    arguments = sized(name, steps, SIZES)
    plain: list[float] = []
    modes: dict[str, list[Row]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        plain.append(median_step(run_worker(name, arguments, "plain", threads=1)))
        for mode in MODES:
            options: dict[str, Any] = {"plan": mode != "reactive", "measures": True, "link": link * 1e9, "waits": True}
            options["moves"] = mode if mode in PLANNED else "swap"
            run = run_worker(name, arguments, budget, threads=1, tier="ram", **options)
            modes[mode].append(measured(run))
    return {"example": name, "budget": budget, "link_gb_per_s": link, "plain_s": plain, "modes": modes}


def ratio(row: Row, mode: str) -> float | None:
    """Return the mode's median step over the plain one; None where the budget could not be met, or nothing settled."""
    ran = [statistics.median(run["seconds"]) for run in row["modes"][mode] if run.get("seconds")]
    return statistics.median(ran) / statistics.median(row["plain_s"]) if ran else None


def prediction_error(row: Row, mode: str) -> float | None:
    """Return how much longer a step was foreseen than it took, as a part of it; None without a plan."""
    ran = [run for run in row["modes"][mode] if run.get("seconds") and run["plan"].get("predicted_us")]
    errors = [run["plan"]["predicted_us"] / 1e6 / statistics.median(run["seconds"]) - 1 for run in ran]
    return statistics.median(errors) if errors else None


def table(figures: dict[str, Any]) -> Table:
    """Return one row an example, budget and link."""
    columns = ["example", "budget", "link", "plain step", *MODES, "foreseen (joint)", "swaps, drops (joint)"]
    return Table("Plans executed, by what they may do", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    ratios = [ratio(row, mode) for mode in MODES]
    error, last = prediction_error(row, "joint"), row["modes"]["joint"][-1]
    plan = last.get("plan") or {}
    cells = [row["example"], row["budget"], f"{row['link_gb_per_s']:g} GB/s"]
    cells.append(f"{1e3 * statistics.median(row['plain_s']):.0f} ms")
    cells += ["-" if one is None else f"{one:.2f}x" for one in ratios]
    return [*cells, "-" if error is None else f"{error:+.0%}", f"{plan.get('swaps', 0)}, {plan.get('drops', 0)}"]


def run(
    *,
    examples: Sequence[str] = tuple(SIZES),
    budgets: Sequence[str] = ("60%", "40%", "25%"),
    links: Sequence[float] = (1.0, 4.0),
    steps: int = 20,
    repeats: int = 1,
) -> Iterator[Result]:
    """Run each example in each mode, at each budget and over each link."""
    cases = [(name, budget, link) for name in examples for budget in budgets for link in links]
    figures = {"steps": steps, "rows": [compare(*case, steps, repeats) for case in cases]}
    yield Result("moves", figures, [table(figures)])

"""Plans that swap, executed: step time against the plain run, the reactive mode and the prediction, over a slow link.

The ram tier behind a link of a given speed, so that copies can be hidden and the figures do not hang on a disk. All
modes of an example run one after the other; steps of the last half count. `--link` in GB/s; by default it carries, in
the time of a plain step, a share of the bytes that the reactive mode moves.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.examples import TIMED, Run, done_between, median_step, run_worker, sized
from benchmarks.common.result import Result, Row, Table
from benchmarks.common.timing import in_turn

SHARE = 0.7  # of a plain step is what the link needs each way for what the reactive mode moves


def moved_a_step(run: Run) -> int:
    """Return the bytes moved in the busier direction, in a late step."""
    before, after = run["steps"][-4], run["steps"][-2]
    return max(done_between(before, after, f"bytes_{way}") // 2 for way in ("out", "in"))


def compare(name: str, budget: str, steps: int, link: float | None, repeats: int) -> Row:
    """Return an example's figures: its link (GB/s), the seconds of each mode, and facts of the last planned run."""
    arguments = sized(name, steps, TIMED)
    last: Run = {}

    def plain() -> float:
        return median_step(run_worker(name, arguments, "plain", threads=1))

    def inside(**options: Any) -> float:
        last.update(run_worker(name, arguments, budget, threads=1, tier="ram", **options))
        return median_step(last)

    if link is None:
        inside(plan=False)
        link = moved_a_step(last) / (SHARE * plain()) / 1e9
    ways = {
        "plain": plain,
        "reactive": lambda: inside(plan=False, link=link * 1e9),
        "planned": lambda: inside(plan=True, measures=True, link=link * 1e9),
    }
    seconds = {mode: statistics.median(found) for mode, found in in_turn(ways, repeats).items()}
    return {"example": name, "link_gb_per_s": link, "seconds": seconds} | _facts(last)


def _facts(planned: Run) -> Row:
    """Return what a planned run foresaw and did; None where no plan was made."""
    stats, plan = planned["stats"], planned["plan"]
    foreseen = ("predicted_us", "compute_us", "measured_us", "stall_us", "swaps", "predicted_stall_us")
    facts = {name: stats[name] for name in ("plan_mismatches", "derailments", "plans")}
    facts |= {"budget": stats["budget_bytes"], "peak_footprint": stats["peak_footprint_bytes"]}
    return facts | {name: plan.get(name) for name in foreseen}


def table(figures: dict[str, Any]) -> Table:
    """Return one row an example run over a slow link: plain, reactive, planned, and what was foreseen."""
    columns = [f"example at {figures['budget']}", "link", "plain step", "reactive", "planned", "reactive / planned",
               "foreseen", "swaps"]  # fmt: skip
    return Table("Plans that swap, executed", columns, [_line(row) for row in figures["examples"]])


def _line(row: Row) -> list[str]:
    s = row["seconds"]
    cells = [row["example"], f"{row['link_gb_per_s']:.2f} GB/s", f"{1e3 * s['plain']:.0f} ms"]
    cells += [f"{s[mode] / s['plain']:.2f}x" for mode in ("reactive", "planned")]
    cells.append(f"{s['reactive'] / s['planned']:.2f}")
    if row["predicted_us"] is None:
        return [*cells, "no plan", ""]
    error = row["predicted_us"] / 1e6 / s["planned"] - 1
    return [*cells, f"{row['predicted_us'] / 1e3:.0f} ms ({error:+.0%})", f"{row['swaps']}"]


def run(
    *,
    examples: Sequence[str] = tuple(TIMED),
    steps: int = 24,
    budget: str = "50%",
    repeats: int = 3,
    link: float | None = None,
) -> Iterator[Result]:
    """Run each example in each mode."""
    figures = {"budget": budget, "examples": [compare(name, budget, steps, link, repeats) for name in examples]}
    yield Result("executed", figures, [table(figures)])

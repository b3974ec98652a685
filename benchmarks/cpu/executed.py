"""Plans that swap, executed: step time against the plain run, the reactive mode and the prediction, over a slow link.

The ram tier behind a link of a given speed, so that copies can be hidden and the figures do not hang on a disk. All
modes of an example run one after the other; steps of the last half count. `--link` in GB/s; by default it carries, in
the time of a plain step, a share of the bytes that the reactive mode moves.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any, TypedDict

from benchmarks.common.examples import TIMED, Run, add_examples, late_step, run_worker, sized
from benchmarks.common.result import Result, Table

SHARE = 0.7  # of a plain step is what the link needs each way for what the reactive mode moves
_FACTS = ("budget", "predicted_us", "compute_us", "measured_us", "stall_us", "swaps", "predicted_stall_us",
          "plan_mismatches", "derailments", "plans", "peak_footprint")  # fmt: skip


class Figures(TypedDict):
    """What the file holds: for each example its link, the seconds of each mode, and _FACTS of a planned run."""

    budget: str
    examples: list[dict[str, Any]]


def moved_a_step(run: Run) -> int:
    """Return the bytes moved in the busier direction, in a late step."""
    before, after = run["steps"][-4], run["steps"][-2]
    return max((after["bytes_out"] - before["bytes_out"]) // 2, (after["bytes_in"] - before["bytes_in"]) // 2)


def compare(name: str, budget: str, steps: int, link: float | None, repeats: int) -> dict[str, Any]:
    """Return an example's figures in each mode; `link` in GB/s."""
    arguments = sized(name, steps, TIMED)

    def plain() -> Run:
        return run_worker(name, arguments, "plain", threads=1)

    def inside(**options: Any) -> Run:
        return run_worker(name, arguments, budget, threads=1, tier="ram", **options)

    if link is None:
        link = moved_a_step(inside(plan=False)) / (SHARE * late_step(plain())) / 1e9
    runs: dict[str, list[Run]] = {"plain": [], "reactive": [], "planned": []}
    for _ in range(repeats):  # in turn, so that what disturbs one disturbs all
        runs["plain"].append(plain())
        runs["reactive"].append(inside(plan=False, link=link * 1e9))
        runs["planned"].append(inside(plan=True, measures=True, link=link * 1e9))
    seconds = {mode: statistics.median(late_step(run) for run in done) for mode, done in runs.items()}
    facts = {key: runs["planned"][-1].get(key) for key in _FACTS}
    return {"example": name, "budget": facts["budget"], "link_gb_per_s": link, "seconds": seconds} | facts


def table(figures: Figures) -> Table:
    """Return one row an example run over a slow link: plain, reactive, planned, and what was foreseen."""
    columns = [f"example at {figures['budget']}", "link", "plain step", "reactive", "planned", "reactive / planned",
               "foreseen", "swaps"]  # fmt: skip
    return Table("Plans that swap, executed", columns, [_line(row) for row in figures["examples"]])


def _line(row: dict[str, Any]) -> list[str]:
    s = row["seconds"]
    cells = [row["example"], f"{row['link_gb_per_s']:.2f} GB/s", f"{1e3 * s['plain']:.0f} ms"]
    cells += [f"{s[mode] / s['plain']:.2f}x" for mode in ("reactive", "planned")]
    cells.append(f"{s['reactive'] / s['planned']:.2f}")
    if row["predicted_us"] is None:
        return [*cells, "no plan", ""]
    error = row["predicted_us"] / 1e6 / s["planned"] - 1
    return [*cells, f"{row['predicted_us'] / 1e3:.0f} ms ({error:+.0%})", f"{row['swaps']}"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    add_examples(parser, steps=24, examples=tuple(TIMED))
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--link", type=float)


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Run each example in each mode."""
    rows = [compare(name, args.budget, args.steps, args.link, args.repeats) for name in args.examples]
    figures = Figures(budget=args.budget, examples=rows)
    yield Result("executed", figures, [table(figures)])

"""How often a steady training is planned: the first plan, the one that improves on it, and what comes after these.

A search is one for what leaves, and how; a plan that comes of it is used if it is foreseen to be faster. Ops are timed
under the first plan, and the second one is made with what they take then. Training goes on while plans are made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated
from unittest.mock import patch

from benchmarks.common.examples import EXAMPLES, median_step, run_worker, sized
from benchmarks.common.result import Result, Row, Table


def example(name: str, steps: int, budget: str) -> Row:
    """Train an example within a share of its peak; steps are counted from 1."""
    with patch.dict(os.environ, MEMFIT_PLAN_CACHE="off"):
        found = run_worker(name, sized(name, steps), budget, tier="ram")
    searches, plans = ([step[which] for step in found["steps"]] for which in ("plan_searches", "plans"))
    return {"example": name, "budget": budget, "steps": len(searches), "searches": _grew(searches),
            "exchanges": _grew(plans), "step_ms": 1000 * median_step(found), "error": found["error"]}  # fmt: skip


def _grew(counts: Sequence[int]) -> list[int]:
    """Return the steps in which a count grew, each as often as it grew then."""
    before = [0, *counts]
    return [step for step, (then, now) in enumerate(pairwise(before), 1) for _ in range(now - then)]


def table(figures: Row) -> Table:
    """Return one row an example."""
    columns = ["example", "budget", "steps", "step ms", "searches", "in force from", "searches after the second"]
    return Table("Plans of a steady training", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    if row["error"]:
        return [row["example"], row["budget"], row["error"].splitlines()[0], *[""] * 4]
    first = ", ".join(map(str, row["exchanges"][:3])) + (", ..." if len(row["exchanges"]) > 3 else "")
    return [row["example"], row["budget"], str(row["steps"]), f"{row['step_ms']:.1f}", str(len(row["searches"])),
            first or "-", str(max(len(row["searches"]) - 2, 0))]  # fmt: skip


def run(
    *,
    examples: Annotated[Sequence[str], {"choices": sorted(EXAMPLES)}] = tuple(EXAMPLES),
    steps: int = 300,
    budget: str = "60%",
) -> Iterator[Result]:
    """Train each example for some hundred steps, and count."""
    rows: list[Row] = []
    for name in examples:
        rows.append(example(name, steps, budget))
        figures = {"rows": rows}
        yield Result("replans", figures, [table(figures)])

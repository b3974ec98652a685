"""Training within a budget on a simulated H200 whose times are modelled: what is waited for, and what plans then cost.

The engine, torch's allocator and autograd run as on a GPU; ops, copies and the host take the time that a model gives
them, on a virtual clock (docs/cuda-simulator.md). Plans come when the clock has come as far as they took to make, here.
No byte is computed. "Foreseen" is the last plan's own iteration, "off" the measured one over it; "bound" is what no
plan can be below (`memfit.planning.joint`). That a busy memory slows ops and copies is not among the times.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from benchmarks.common.result import Result, Row, Table, gib
from benchmarks.gpu.h200 import MACHINE
from benchmarks.gpu.virtual import outcome_of
from memfit.files import load_trace
from memfit.planning.joint.program import time_bound

MODELS = ("llama", "gpt2_medium", "resnet152", "resnet50", "vgg16")
_PLAIN = 10  # steps
_LAST = 8  # steps that a median is taken of
_LIMIT_S = 1800


def cell(model: str, budget_bytes: int | None, kinds: Sequence[str], trace: Path, quick: bool = False) -> Row:
    """Return what a process on the simulated GPU found, which trains a step of each of `kinds`."""
    request = {"model": model, "budget_bytes": budget_bytes, "kinds": kinds, "trace": str(trace), "quick": quick}
    return outcome_of("benchmarks.gpu.simulated_cell", request, _LIMIT_S)


def measured(plain: Row, limited: Row, budget_bytes: int, trace: Path) -> Row:
    """Return the figures of one budget."""
    rows, periods, plan = limited["rows"], limited["periods_ms"], limited.get("plan")
    found: Row = {"step_ms": step_ms(limited), "periods_ms": periods, "driver": limited["driver"],
                  "stats": limited["stats"], "plan": plan, "unplanned": limited["unplanned"]}  # fmt: skip
    plans = [row["plans"] for row in rows]
    planned = [after["planned_iterations"] > before["planned_iterations"] for before, after in pairwise(rows)]
    # Steps are counted from 1: the first that a plan was followed in throughout, and the first of the last plan.
    found["first_planned"] = planned.index(True) + 2 if any(planned) else None
    found["last_plan"] = plans.index(plans[-1]) + 1 if plans[-1] else None
    found["unplanned_after"] = planned[found["first_planned"] - 2 :].count(False) if any(planned) else None
    found["to_host_first_bytes"] = rows[0]["to_host"]
    waits = [row["waits"] - plain["rows"][-1]["waits"] for row in rows[-_LAST:]]
    found["waits_a_step"] = statistics.median(waits)
    copies = [row["swaps"] + row["prefetches"] for row in rows[-_LAST - 1 :]]
    calls = sum(row["calls"] for row in rows[-_LAST:]) - _LAST * plain["rows"][-1]["calls"]
    found["calls_a_copy"] = calls / (copies[-1] - copies[0]) if copies[-1] > copies[0] else None
    if plan:
        found["off"] = 1000 * found["step_ms"] / plan["foreseen_us"] - 1
        found["foreseen"] = plan["foreseen_us"] / plan["compute_us"] - 1
        found["bound"] = bound(trace, budget_bytes)
    return found


def bound(trace: Path, budget_bytes: int) -> float | None:
    """Return the least that a plan can add, as a part of the computation; None where none meets the budget."""
    least = time_bound(load_trace(trace), MACHINE, budget_bytes)
    return least.overhead if least.is_feasible else None


def step_ms(found: Row) -> float:
    """Return the median of the last steps, from one's beginning to the next one's."""
    return float(statistics.median(found["periods_ms"][-_LAST:]))


def table(figures: Row) -> Table:
    """Return one row a model and budget."""
    columns = ["model", "peak GiB", "budget", "plain step ms", "first step", "planned from", "last plan from", "step",
               "foreseen", "off", "bound", "all steps", "waits a step", "driver's peak / budget"]  # fmt: skip
    return Table("On the simulated H200", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    peak, plain, periods = max(row["driver"]["training"], row["driver"]["adoption"]), row["plain_ms"], row["periods_ms"]
    cells = [row["model"], gib(row["peak_bytes"]), f"{row['share']}%", f"{plain:.1f}", f"{periods[0] / plain:.1f}x"]
    cells += ["-" if row[name] is None else str(row[name]) for name in ("first_planned", "last_plan")]
    cells.append(f"{row['step_ms'] / plain:.3f}x")
    cells += ["-" if row.get(name) is None else f"{row[name]:+.1%}" for name in ("foreseen", "off", "bound")]
    return [*cells, f"{sum(periods) / (len(periods) * plain):.2f}x", f"{row['waits_a_step']:g}",
            f"{peak / row['budget_bytes']:.4f}"]  # fmt: skip


def run(
    *,
    models: Annotated[Sequence[str], {"choices": list(MODELS)}] = MODELS,
    shares: Sequence[int] = (80, 60, 40),
    steps: int = 50,
    quick: Annotated[bool, {"help": "tiny models"}] = False,
) -> Iterator[Result]:
    """Train each model plainly, and within each share of its peak."""
    rows: list[Row] = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json.gz"
            plain = cell(model, None, ["whole"] * _PLAIN, trace, quick)
            for share in shares:
                budget = plain["peak_bytes"] * share // 100
                limited = cell(model, budget, ["whole"] * steps, trace, quick)
                known = {"model": model, "share": share, "peak_bytes": plain["peak_bytes"], "budget_bytes": budget,
                         "plain_ms": step_ms(plain)}  # fmt: skip
                rows.append(known | measured(plain, limited, budget, trace))
        figures = {"steps": steps, "rows": rows}
        yield Result("simulated_gpu", figures, [table(figures)])

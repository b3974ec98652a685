"""What the plan adds for which training waits, and how soon it is there, beside the later one and one of swaps alone.

Reads the traces that `record_models` writes (`--traces FOLDER`), at budgets of `bounds`. Seconds are of the processor's
time, and only to be compared within a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline.bounds import budget_of, overhead_of, percent, trace_files
from memfit.files import find_machine, load_trace
from memfit.ir import Trace
from memfit.machine import Machine, profile_names
from memfit.planning.autoswap import plan_under_budget
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import plan_jointly, soon_planner
from memfit.running.planned.engine_plan import EFFORT

SHARES = (80, 60, 45, 30)
KINDS = {"swaps": "swaps alone", "first": "first plan", "later": "later plan"}


def ways(trace: Trace, machine: Machine, budget_bytes: int) -> dict[str, Callable[[], float]]:
    """Return, by kind, what makes a plan as a session does and returns the time that it adds, as a part of the step."""
    return {
        "swaps": lambda: plan_under_budget(trace, machine, budget_bytes, effort=EFFORT).timeline.overhead,
        "first": lambda: soon_planner(trace, machine)(budget_bytes).overhead,
        "later": lambda: plan_jointly(trace, machine, budget_bytes, effort=EFFORT).overhead,
    }


def cell(trace: Trace, machine: Machine, share: int) -> Row:
    """Return the figures of one budget: added times as parts of the computation, None where there is no plan."""
    budget = budget_of(trace, share)
    found: Row = {"share": share, "budget_bytes": budget}
    for kind, plan in ways(trace, machine, budget).items():
        begin = time.process_time()
        added = overhead_of(plan)
        found[kind] = {"added": added, "seconds": round(time.process_time() - begin, 2)}
    return found


def model(path: Path, machine: Machine, shares: Sequence[int]) -> Row:
    """Return the figures of one model."""
    trace = corrected(load_trace(path))
    cells = [cell(trace, machine, share) for share in shares]
    return {"name": path.name.split(".")[0], "ops": len(trace.ops), "cells": cells}


def table(figures: Row) -> Table:
    """Return one row a model and budget."""
    rows = [
        [each["name"], str(each["ops"]), f"{cell['share']} %"]
        + [percent(cell[kind]["added"]) for kind in KINDS]
        + [f"{cell[kind]['seconds']:.1f}" for kind in KINDS]
        for each in figures["models"]
        for cell in each["cells"]
    ]
    columns = ["model", "ops", "budget", *KINDS.values(), *(f"{name}, CPU s" for name in KINDS.values())]
    return Table(f"Added time on {figures['machine']}, % of the step, and what finding the plan takes", columns, rows)


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these"}] = (),
    machine: Annotated[str, {"choices": profile_names()}] = "pcie5",
    shares: Sequence[int] = SHARES,
) -> Iterator[Result]:
    """Make the first plan, the later one and one of swaps alone for each trace of the folder at each budget."""
    found = [model(path, find_machine(machine), shares) for path in trace_files(traces, models)]
    figures: Row = {"machine": machine, "models": found}
    yield Result("first_plan", figures, [table(figures)])

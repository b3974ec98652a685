"""Every swap policy on recorded models, at 80, 60 and 40 % of the peak and at the smallest budget each can reach.

Reads the traces that `record_models` writes (`--traces FOLDER`); plans for one machine (`--machine`). Where a policy
finds no plan its cell has the memory that it would need, as a share of the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline import _policies
from memfit.baselines.policies import POLICIES
from memfit.comparing.policies import compare_policies
from memfit.files import find_machine, load_trace
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap import smallest_budget
from memfit.reporting.policies import PolicyCell

SHARES = (80, 60, 40)


def smallest(name: str, trace: Trace, machine: Machine, policies: Sequence[str]) -> list[PolicyCell]:
    """Return each policy at the least budget it says it can reach; at the least of all where it says nothing."""
    least, _ = smallest_budget(trace)
    cells = []
    for policy in policies:
        (cell,) = compare_policies(name, trace, machine, [least], [policy]).cells
        if cell.overhead is None and cell.required_bytes:
            (cell,) = compare_policies(name, trace, machine, [cell.required_bytes], [policy]).cells
        cells.append(cell)
    return cells


def compare(path: Path, machine: Machine, policies: Sequence[str]) -> tuple[Row, Table]:
    """Return one model's figures, those of each cell and of the smallest budgets, and a table of all policies."""
    trace = load_trace(path)
    found = _policies.compare(path.name.split(".")[0], trace, machine, SHARES, policies)
    peak, least = found.unswapped_bytes, smallest(found.file, trace, machine, policies)
    reached = [_policies.added(cell, peak) + ("" if cell.overhead is None else f" at {cell.budget_bytes / peak:.0%}")
               for cell in least]  # fmt: skip
    model = {"name": found.file, "ops": len(trace.ops), "peak_bytes": peak, "machine": machine.name,
             "cells": [asdict(cell) for cell in found.cells], "smallest": [asdict(cell) for cell in least]}  # fmt: skip
    return model, _policies.table(found, len(trace.ops), SHARES, {"smallest": reached})


def table(models: list[Row]) -> Table:
    """Return one row a model: the added time of memfit's plan and of the best of the others, at each budget."""
    lines = []
    for model in models:
        row = [model["name"], f"{model['peak_bytes'] / 1e9:.1f} GB"]
        for budget in sorted({cell["budget_bytes"] for cell in model["cells"]}, reverse=True):
            cells = [cell for cell in model["cells"] if cell["budget_bytes"] == budget]
            ours = [cell for cell in cells if cell["policy"] == "memfit"]
            row.append(f"{_best(ours).split(' ')[0]}, {_best([cell for cell in cells if cell not in ours])}")
        (low,) = [cell for cell in model["smallest"] if cell["policy"] == "memfit"]
        row.append(f"{low['overhead']:.1%} at {low['budget_bytes'] / model['peak_bytes']:.0%}")
        lines.append(row)
    columns = ["model", "peak", "80 %: memfit, best other", "60 %", "40 %", "memfit's smallest"]
    return Table("Added time", columns, lines)


def _best(cells: list[Row]) -> str:
    feasible = [cell for cell in cells if cell["overhead"] is not None]
    if not feasible:
        return "none"
    least = min(feasible, key=lambda cell: cell["overhead"])
    return f"{max(least['overhead'], 0.0):.2%} ({least['policy']})"


def run(
    *, traces: Path = TRACES, machine: str = "nvlink-c2c", policies: Sequence[str] = tuple(POLICIES)
) -> Iterator[Result]:
    """Compare the policies on each trace of the folder."""
    found = [compare(path, find_machine(machine), policies) for path in sorted(traces.glob("*.json.gz"))]
    yield Result("peers", [model for model, _ in found], [each for _, each in found])

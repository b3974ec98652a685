"""Managed memory's policies beside planned swaps: added time and bytes moved, also below the smallest budget of plans.

Reads the traces that `record_models` writes (`--traces FOLDER`), and the SmartPool authors' trace of a real training
step if the data folder has it. Plans have no figure below their floor. The faults are simulated, with constants from
literature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import DATA, TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline.bounds import trace_files
from benchmarks.paper import autoswap
from memfit.comparing.policies import compare_policies
from memfit.files import find_machine, load_trace
from memfit.ir import Trace
from memfit.machine import Machine, profile_names
from memfit.planning.autoswap import smallest_budget
from memfit.simulate import load_bytes

SHARES = (100, 80, 60, 40, 20)
POLICIES = ("um-naive", "oc-dnn", "deepum", "autoswap", "swap", "memfit")
_KEPT = ("policy", "budget_bytes", "overhead", "copied_bytes", "required_bytes", "seconds")
_PAPER = "cifar10_vgg_b100_accesses.csv"


def model(name: str, trace: Trace, machine: Machine, shares: Sequence[int], policies: Sequence[str]) -> Row:
    """Return the figures of one trace, at shares (%) of its peak and at half of its floor."""
    peak, floor = int(load_bytes(trace).max()), smallest_budget(trace)[0]
    budgets = [*(peak * share // 100 for share in shares), floor // 2]
    found = compare_policies(name, trace, machine, budgets, policies)
    cells = [{key: value for key, value in asdict(cell).items() if key in _KEPT} for cell in found.cells]
    return {"name": name, "ops": len(trace.ops), "peak_bytes": peak, "floor_bytes": floor, "machine": machine.name,
            "cells": cells}  # fmt: skip


def table(models: list[Row]) -> Table:
    """Return one row a trace and budget: the added time of each policy, with the bytes that it moves."""
    policies = list(dict.fromkeys(cell["policy"] for each in models for cell in each["cells"]))
    rows = []
    for each in models:
        for budget in dict.fromkeys(cell["budget_bytes"] for cell in each["cells"]):
            cells = {cell["policy"]: cell for cell in each["cells"] if cell["budget_bytes"] == budget}
            below = " (below the floor)" if budget < each["floor_bytes"] else ""
            share = f"{100 * budget / each['peak_bytes']:.0f} %{below}"
            rows.append([each["name"], share, *(_cell(cells[policy]) for policy in policies)])
    return Table("Added time, and bytes moved", ["trace", "budget", *policies], rows)


def _cell(cell: Row) -> str:
    if cell["overhead"] is None:
        return "-"
    return f"{max(cell['overhead'], 0.0):.2f}x ({cell['copied_bytes'] / 1e9:.1f} GB)"


def _traces(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Trace, str | None]]:
    """Yield the name of each trace, the trace, and the machine that it was measured on, if it was."""
    for path in trace_files(folder, names):
        yield path.name.split(".")[0], load_trace(path), None
    if (DATA / "paper" / _PAPER).exists() and (not names or "authors" in names):
        yield "authors' VGG", autoswap.as_trace(autoswap.load()), autoswap.MACHINE.name


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these; `authors` is the authors' trace"}] = (),
    machine: Annotated[str, {"choices": profile_names()}] = "uvm",
    shares: Sequence[int] = SHARES,
    policies: Sequence[str] = POLICIES,
) -> Iterator[Result]:
    """Compare the policies on each trace at each budget."""
    found = [
        model(name, trace, find_machine(measured_on or machine), shares, policies)
        for name, trace, measured_on in _traces(traces, models)
    ]
    yield Result("managed", found, [table(found)])

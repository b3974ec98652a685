"""The policies that recompute, and perhaps swap, at the budgets of `bounds`, beside memfit's joint plan.

Reads the traces that `record_models` writes (`--traces FOLDER`). Every plan is checked: each op reads what it read
before, and no op sees more bytes than the budget. "inf" says that a policy finds no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline.bounds import SHARES, budget_of, percent, trace_files
from memfit.baselines.recomputing import RECOMPUTE_POLICIES
from memfit.comparing.recomputing import judge
from memfit.files import find_machine, load_trace
from memfit.machine import Machine, profile_names
from memfit.planning.joint.again import corrected

OURS = "memfit-joint"
OTHERS = tuple(name for name in RECOMPUTE_POLICIES if name != OURS)


def model(path: Path, machine: Machine, shares: Sequence[int], policies: Sequence[str]) -> Row:
    """Return the figures of one model."""
    trace = corrected(load_trace(path))
    cells = [
        {"share": share, **asdict(judge(trace, machine, budget_of(trace, share), name))}
        for share in shares
        for name in policies
    ]
    return {"name": path.name.split(".")[0], "ops": len(trace.ops), "machine": machine.name, "cells": cells}


def table(models: list[Row]) -> Table:
    """Return one row a model and budget: memfit's joint plan, the best of the others, and each of them."""
    rows = []
    for each in models:
        for share in dict.fromkeys(cell["share"] for cell in each["cells"]):
            added = {cell["policy"]: cell["overhead"] for cell in each["cells"] if cell["share"] == share}
            found = {name: added[name] for name in OTHERS if added.get(name) is not None}
            best = min(found, key=lambda name: found[name], default=None)
            rows.append([each["name"], f"{share} %", percent(added.get(OURS)), best or "none",
                         *(percent(added.get(name)) for name in OTHERS)])  # fmt: skip
    return Table("Added time, % of the step", ["model", "budget", OURS, "best other", *OTHERS], rows)


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these"}] = (),
    machine: Annotated[str, {"choices": profile_names()}] = "pcie5",
    shares: Sequence[int] = SHARES,
    policies: Annotated[Sequence[str], {"choices": list(RECOMPUTE_POLICIES)}] = tuple(RECOMPUTE_POLICIES),
) -> Iterator[Result]:
    """Compare the policies on each trace of the folder at each budget."""
    found = [model(path, find_machine(machine), shares, policies) for path in trace_files(traces, models)]
    yield Result("recomputing", found, [table(found)])

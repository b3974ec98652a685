"""How much less time plans add where outputs take the places of dying inputs.

Reads the traces that `record_models` writes (`--traces FOLDER`), at the budgets of `bounds`. These traces have no
bytes, so that nothing could be tried: here every output of one of the engine's operators for it
(native/engine/in_place_ops.h) is taken to come out the same over any input of its size. Whether one is made use of is
decided as in a session. Plans are the fast ones of `bounds`, and are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import ROOT, TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline.bounds import EFFORTS, SHARES, budget_of, figure, joint_overhead, percent, trace_files
from memfit.files import find_machine, load_trace
from memfit.ir import Handover, Trace
from memfit.machine import Machine, profile_names
from memfit.planning.handing_over import hand_over
from memfit.planning.joint.again import corrected
from memfit.planning.joint.program import time_bound
from memfit.planning.lifetimes import births

_LIST = ROOT / "native" / "engine" / "in_place_ops.h"
_COMPOSITES = {"aten::softmax", "aten::log_softmax", "aten::dropout"}
"""They only call an operator of the list, which the trace does not show."""


def with_all_handovers(trace: Trace) -> Trace:
    """Return the trace with every handover that the operators and sizes allow."""
    names = set(re.findall(r'"(aten::\w+)"', _LIST.read_text())) | _COMPOSITES
    born = births(trace)
    found = [
        Handover(index, giver, taker)
        for index, op in enumerate(trace.ops)
        if op.name.split(".")[0] in names
        for taker in op.writes
        if born.get(taker) == index
        for giver in op.reads
        if giver not in op.writes and trace.storages[giver].size_bytes == trace.storages[taker].size_bytes
    ]
    return replace(trace, handovers=tuple(found))


def cell(trace: Trace, machine: Machine, share: int) -> Row:
    """Return the bounds and the plans at one budget, without handovers and with them: parts of the computation."""
    budget = budget_of(trace, share)
    made = hand_over(trace, budget)
    figures: Row = {"share": share, "handovers": len(made.trace.handovers)}
    for name, one in (("without", replace(trace, handovers=())), ("with", made.trace)):
        figures[f"bound_{name}"] = figure(time_bound(one, machine, budget))
        figures[f"plan_{name}"] = joint_overhead(one, machine, budget, EFFORTS["joint_plan_fast"])
    return figures


def model(path: Path, machine: Machine, shares: Sequence[int]) -> Row:
    """Return the figures of one model."""
    trace = with_all_handovers(corrected(load_trace(path)))
    cells = [cell(trace, machine, share) for share in shares]
    return {"name": path.name.split(".")[0], "ops": len(trace.ops), "machine": machine.name, "cells": cells}


def table(models: list[Row]) -> Table:
    """Return one row a model and budget."""
    columns = ["model", "budget", "handovers", "bound", "bound in place", "fast plan", "fast plan in place"]
    kinds = ("bound_without", "bound_with", "plan_without", "plan_with")
    rows = [
        [each["name"], f"{one['share']} %", one["handovers"], *(percent(one[kind]) for kind in kinds)]
        for each in models
        for one in each["cells"]
    ]
    return Table("Added time, % of the step", columns, rows)


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these"}] = (),
    machine: Annotated[str, {"choices": profile_names()}] = "pcie5",
    shares: Sequence[int] = SHARES,
) -> Iterator[Result]:
    """Plan each trace of the folder at each budget, without handovers and with them."""
    found = [model(path, find_machine(machine), shares) for path in trace_files(traces, models)]
    yield Result("in_place", found, [table(found)])

"""How little time swapping, recomputing and both can add, beside what memfit's swaps add.

Reads the traces that `record_models` writes (`--traces FOLDER`). A budget is a share of the activation peak: what is
there before and after the iteration, such as weights, and that share of what the peak has beyond it. No plan of a kind
can be below its time bound (`memfit.planning.joint`); "inf" says that no plan meets the budget. For the machines that
`--plans` names, joint plans are made too: remakings carried out on the trace, and memfit's swaps on the result. Beside
them are plans that recompute only, and joint plans that are searched for without a program, as long traces' are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import RESULTS, TRACES
from benchmarks.common.result import Result, Row, Table
from benchmarks.common.timing import timed
from memfit.errors import BudgetError
from memfit.files import find_machine, load_trace
from memfit.ir import Trace
from memfit.machine import Machine, profile_names
from memfit.planning.autoswap import plan_under_budget
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import RELAXED, Moves, TimeBound, time_bound
from memfit.simulate import load_bytes

SHARES = (80, 60, 45, 30, 20)
MACHINES = ("pcie4", "pcie5", "nvlink-c2c")
_KINDS = {
    "swap_copies_all": (Moves.SWAP, False),
    "swap": (Moves.SWAP, True),
    "joint": (Moves.JOINT, True),
    "recompute": (Moves.RECOMPUTE, True),
}
"""The bounds: what plans may do, and whether they know of clean copies. memfit's plans copy everything out."""


EFFORTS = {"joint_plan": 6.0, "joint_plan_fast": 1.0}
"""The joint plans: seconds of counted work."""


def budget_of(trace: Trace, share: int) -> int:
    """Return the budget that leaves `share` percent of the activation peak, beside what is always there."""
    always = sum(storage.size_bytes for storage in trace.storages if trace.recurs(storage))
    return always + (int(load_bytes(trace).max()) - always) * share // 100


_NEAR = ((45, 0.005), (30, 0.015), (0, 0.03))
"""From a share of the peak on: a joint plan that is farther from its bound has another one, of whole storages."""
_WHOLE = 0.02  # of the budget: storages from this size on are whole there
_WHOLE_SECONDS = 60.0


def cell(trace: Trace, machine: Machine, share: int, effort: float, *, jointly: bool, known: Row) -> Row:
    """Return the figures of one budget: added times as parts of the computation, None where there is no plan.

    What `known` has of the same cell is not measured again, joint plans excepted.
    """
    budget = budget_of(trace, share)
    if known.get("budget_bytes") == budget:
        return (
            known | _others(trace, machine, budget, known) | (_joint_plans(trace, machine, budget) if jointly else {})
        )
    swaps = overhead_of(lambda: plan_under_budget(trace, machine, budget, effort=effort).timeline.overhead)
    found: Row = {"machine": machine.name, "share": share, "budget_bytes": budget, "swap_plan": swaps}
    if jointly:
        found |= _joint_plans(trace, machine, budget)
    for name, (moves, clean_copies) in _KINDS.items():
        bind = partial(time_bound, trace, machine, budget, moves=moves, clean_copies=clean_copies)
        bound, seconds = timed(bind)
        found |= {name: figure(bound), f"{name}_seconds": round(seconds, 1)}
    return found | _others(trace, machine, budget, {}) | _whole_bound(trace, machine, share, found)


def _others(trace: Trace, machine: Machine, budget_bytes: int, known: Row) -> Row:
    """Return what other plans than joint ones by a program add, but for those that are `known`."""
    ways: dict[str, Callable[[], float]] = {
        "recompute_plan": lambda: plan_jointly(trace, machine, budget_bytes, moves=Moves.RECOMPUTE).overhead,
        "greedy_plan": lambda: plan_jointly(trace, machine, budget_bytes, most_ops=0).overhead,
    }
    return {name: overhead_of(plan) for name, plan in ways.items() if name not in known}


def _whole_bound(trace: Trace, machine: Machine, share: int, found: Row) -> Row:
    """Return the joint bound with large storages moved as wholes, where the joint plan is far from its bound."""
    plan, bound, budget = found.get("joint_plan"), found["joint"], found["budget_bytes"]
    if plan is None or bound is None or plan - bound <= next(near for least, near in _NEAR if share >= least):
        return {}
    whole = time_bound(trace, machine, budget, whole_bytes=int(_WHOLE * budget), seconds=_WHOLE_SECONDS)
    return {"joint_whole": figure(whole)}


def figure(bound: TimeBound) -> float | None:
    """Return the added time as a part of the computation; None where no plan meets the budget."""
    return bound.overhead if bound.is_feasible else None


def _joint_plans(trace: Trace, machine: Machine, budget_bytes: int) -> Row:
    """Return what joint plans of each effort add, and the seconds that they take."""
    found: Row = {}
    for name, effort in EFFORTS.items():
        reached, seconds = timed(partial(joint_overhead, trace, machine, budget_bytes, effort))
        found |= {name: reached, f"{name}_seconds": round(seconds, 1)}
    return found


def joint_overhead(trace: Trace, machine: Machine, budget_bytes: int, effort: float) -> float | None:
    """Return what a joint plan adds as a part of the computation; None where none is found."""
    return overhead_of(lambda: plan_jointly(trace, machine, budget_bytes, effort=effort).overhead)


def overhead_of(planned: Callable[[], float]) -> float | None:
    """Return what a plan adds as a part of the computation; None where none is found."""
    try:
        return planned()
    except BudgetError:
        return None


def model(
    path: Path, machines: Sequence[str], shares: Sequence[int], effort: float, plans: Sequence[str], known: Row
) -> Row:
    """Return the figures of one model; `known` are those of an earlier run."""
    trace = corrected(load_trace(path))
    of_before = {(each["machine"], each["share"]): each for each in known.get("cells", ())}
    cells = [
        cell(trace, find_machine(name), share, effort, jointly=name in plans, known=of_before.get((name, share), {}))
        for name in machines
        for share in shares
    ]
    return {"name": path.name.split(".")[0], "ops": len(trace.ops), "peak_bytes": int(load_bytes(trace).max()),
            "step_us": sum(op.duration_us for op in trace.ops), "cells": cells}  # fmt: skip


def table(figures: Row, machine: str = "pcie5") -> Table:
    """Return one row a model and budget."""
    kinds = ["swap_plan", "swap_copies_all", "swap", "greedy_plan", "joint_plan_fast", "joint_plan", "joint",
             "joint_whole", "recompute_plan", "recompute"]  # fmt: skip
    rows = [
        [each["name"], f"{cell['share']} %", *(percent(cell[kind]) if kind in cell else "" for kind in kinds)]
        for each in figures["models"]
        for cell in each["cells"]
        if cell["machine"] == machine
    ]
    columns = ["model", "budget", "swap plan", "swap bound", "with clean copies", "joint, no program",
               "fast joint plan", "joint plan", "joint bound", "of wholes", "recompute plan",
               "recompute bound"]  # fmt: skip
    return Table(f"Added time on {machine}, % of the step", columns, rows)


def percent(overhead: float | None) -> str:
    """Return an added time in percent; "inf" where there is no plan."""
    return "inf" if overhead is None else f"{max(100 * overhead, 0.0):.1f}"


def trace_files(folder: Path, models: Sequence[str]) -> list[Path]:
    """Return the traces of `models` in a folder, of all if none is named."""
    return [path for path in sorted(folder.glob("*.json.gz")) if not models or path.name.split(".")[0] in models]


def run(
    *,
    traces: Path = TRACES,
    models: Annotated[Sequence[str], {"help": "only these"}] = (),
    machines: Annotated[Sequence[str], {"choices": profile_names()}] = MACHINES,
    shares: Sequence[int] = SHARES,
    plans: Annotated[Sequence[str], {"choices": profile_names(), "help": "machines for joint plans"}] = ("pcie5",),
    effort: Annotated[float, {"help": "seconds for a plan of swaps"}] = 2.0,
    keep: Annotated[bool, {"help": "the last result's bounds and swap plans; joint plans are made again"}] = False,
) -> Iterator[Result]:
    """Bound the added time of each trace of the folder at each budget."""
    paths = trace_files(traces, models)
    known = {each["name"]: each for each in _last_models()} if keep else {}
    found = [model(path, machines, shares, effort, plans, known.get(path.name.split(".")[0], {})) for path in paths]
    figures: Row = {"relaxed": RELAXED, "models": found}
    yield Result("bounds", figures, [table(figures, machine) for machine in machines])


def _last_models() -> list[Row]:
    """Return the models of the last result; none if there is none."""
    path = RESULTS / "bounds.json"
    if not path.exists():
        return []
    models: list[Row] = json.loads(path.read_text())["models"]
    return models

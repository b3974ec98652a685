"""Training within a budget on a simulated H200 whose times are modelled: is a plan in force, and as good as foreseen?

The engine, torch's allocator and autograd run as on a GPU; ops and copies take the time that the H200's roofline and a
PCIe 5 link give them, on a virtual clock, so that a run repeats exactly. No byte is computed. "Foreseen" is the last
plan's own iteration, "off" the measured one over it; "bound" is what no plan can be below (`memfit.planning.joint`).
Not among the times are what memfit's own code takes on the host, and that a busy memory slows ops and copies.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks.common.paths import ROOT
from benchmarks.common.result import Result, Row, Table, gib
from memfit.files import load_trace
from memfit.machine import Machine, profile
from memfit.planning.joint.program import time_bound

# The batches of `benchmarks.gpu.models` are for a GPU of their own; these fit a host's memory in the tier, too.
CASES: dict[str, dict[str, int]] = {
    "vgg16": {"batch": 160, "layers": 0},
    "resnet50": {"batch": 160, "layers": 0},
    "gpt2_medium": {"batch": 4, "layers": 24},
    "llama": {"batch": 4, "layers": 6},
}
_GPU_BYTES = 141 * 10**9
_WARM = 10  # iterations, after which plans are to be in force
_LAST = 8  # steps that a median is taken of
_LIMIT_S = 1800


def cell(model: str, budget_bytes: int | None, steps: int, trace: Path, quick: bool = False) -> Row:
    """Return what a process on the simulated GPU found."""
    request: dict[str, Any] = {"model": model, "budget_bytes": budget_bytes, "steps": steps, "trace": str(trace),
                               "quick": quick, **({"batch": 0, "layers": 0} if quick else CASES[model])}  # fmt: skip
    arguments = ["-W", "ignore", "-m", "benchmarks.gpu.simulated_cell", json.dumps(request)]
    done = subprocess.run(
        [sys.executable, "-m", "cuda_sim.simulator", str(_GPU_BYTES), *arguments], capture_output=True, text=True,
        timeout=_LIMIT_S, env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{model} within {budget_bytes} bytes: {done.stderr[-4000:]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(plain: Row, limited: Row, budget_bytes: int, trace: Path) -> Row:
    """Return the figures of one budget."""
    rows, stats, plan = limited["rows"], limited["stats"], limited.get("plan")
    warm, last = rows[_WARM], rows[-1]
    found: Row = {"step_ms": step_ms(limited), "driver": limited["driver"], "stats": stats, "plan": plan,
                  "unplanned": limited["unplanned"]}  # fmt: skip
    iterations = last["iterations"] - warm["iterations"]
    found["planned_share"] = (last["planned_iterations"] - warm["planned_iterations"]) / max(iterations, 1)
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
    link = profile("pcie5").into
    least = time_bound(load_trace(trace), Machine("simulated H200", link, link), budget_bytes)
    return least.overhead if least.is_feasible else None


def step_ms(found: Row) -> float:
    """Return the median of the last steps."""
    return float(statistics.median(times["step"] for times in found["times_ms"][-_LAST:]))


def table(figures: Row) -> Table:
    """Return one row a model and budget."""
    columns = ["model", "peak GiB", "budget", "plain step ms", "step", "foreseen", "off", "bound", "by plan",
               "waits a step", "calls a copy", "driver's peak / budget"]  # fmt: skip
    return Table("On the simulated H200", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    peak = max(row["driver"]["training"], row["driver"]["adoption"])
    cells = [row["model"], gib(row["peak_bytes"]), f"{row['share']}%", f"{row['plain_ms']:.1f}"]
    cells.append(f"{row['step_ms'] / row['plain_ms']:.3f}x")
    cells += ["-" if row.get(name) is None else f"{row[name]:+.1%}" for name in ("foreseen", "off", "bound")]
    cells += [f"{row['planned_share']:.0%}", f"{row['waits_a_step']:g}"]
    calls = row["calls_a_copy"]
    return [*cells, "-" if calls is None else f"{calls:.1f}", f"{peak / row['budget_bytes']:.4f}"]


def run(
    *,
    models: Annotated[Sequence[str], {"choices": list(CASES)}] = tuple(CASES),
    shares: Sequence[int] = (80, 70, 60),
    steps: int = 60,
    quick: Annotated[bool, {"help": "tiny models"}] = False,
) -> Iterator[Result]:
    """Train each model plainly, and within each share of its peak."""
    rows: list[Row] = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json.gz"
            plain = cell(model, None, _WARM, trace, quick)
            for share in shares:
                budget = plain["peak_bytes"] * share // 100
                limited = cell(model, budget, steps, trace, quick)
                known = {"model": model, "share": share, "peak_bytes": plain["peak_bytes"], "budget_bytes": budget,
                         "plain_ms": step_ms(plain)}  # fmt: skip
                rows.append(known | measured(plain, limited, budget, trace))
        figures = {"steps": steps, "rows": rows}
        yield Result("simulated_gpu", figures, [table(figures)])

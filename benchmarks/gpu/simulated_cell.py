"""Trains a model on the simulated H200, plainly or within a budget; prints what its steps took as JSON.

No byte is computed: ops and copies take the time that a model gives them, on a virtual clock, and memory is given out
as on a GPU.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.result import Row
from benchmarks.gpu.accelerator import ms_between, now, synchronize
from benchmarks.gpu.h200 import TIER_BYTES
from benchmarks.gpu.models import loss_of, spec_of
from benchmarks.gpu.training import Training
from benchmarks.gpu.virtual import begin
from benchmarks.gpu.work import plan_of
from cuda_sim.simulator import Gpu
from memfit.files import save_trace
from memfit.running.engine.tiers import TierSpec
from memfit.running.session import Session

_COUNTS = ("calls", "waits", "to_host")
_NOTED = ("planned_iterations", "iterations", "plans", "swaps", "prefetches", "recomputations", "derailments")


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    gpu = begin()
    found = plain(gpu, request) if request["budget_bytes"] is None else limited(gpu, request)
    print(json.dumps(found))


def training_of(request: dict[str, Any]) -> Training:
    return Training(spec_of(request), torch.device("cuda", 0))


def steps_of(
    gpu: Gpu, training: Training, kinds: list[str], session: Session | None = None
) -> tuple[list[Row], list[float]]:
    """Return what the runtime and the session counted in each step, and the milliseconds until the next one begins."""
    rows, moments = [], [now(training.device)]
    batch = (training.inputs, training.labels)
    for kind in kinds:
        before = {name: gpu.count(name) for name in _COUNTS}
        take(training, kind, *batch)
        rows.append({name: gpu.count(name) - before[name] for name in _COUNTS})
        if session is not None:
            stats = vars(session.stats) | {"planned_iterations": session.planned_iterations}
            rows[-1] |= {name: stats[name] for name in _NOTED}
        moments.append(now(training.device))
    training.inputs, training.labels = batch
    synchronize(training.device)
    return rows, [ms_between(begin, end) for begin, end in pairwise(moments)]


def take(training: Training, kind: str, inputs: Tensor, labels: Tensor) -> None:
    """Train a step with the "whole" batch or "half" of it, or "evaluate" the whole one."""
    if kind == "evaluate":
        with torch.no_grad():
            loss_of(training.spec, training.model, inputs, labels)
        return
    count = len(inputs) // (2 if kind == "half" else 1)
    training.inputs, training.labels = inputs[:count], labels[:count]
    training.step()


def plain(gpu: Gpu, request: dict[str, Any]) -> Row:
    """Train without a session, and once more in one without a limit, to know the peak of what lives."""
    training = training_of(request)
    rows, periods = steps_of(gpu, training, request["kinds"])
    found = {"rows": rows, "periods_ms": periods, "allocated_bytes": torch.cuda.max_memory_allocated()}
    with Session(None, "ram", device="cuda", plan=False) as session:
        steps_of(gpu, training, ["whole"] * 2)
    return found | {"peak_bytes": session.stats.peak_live_bytes}


def limited(gpu: Gpu, request: dict[str, Any]) -> Row:
    """Train within the budget a model that was made before; the driver's peaks are of each part of the session."""
    training, peaks = training_of(request), {"before": gpu.count("in_use")}
    gpu.reset_peak()
    gpu.in_session(True)
    with Session(request["budget_bytes"], TierSpec("ram", capacity_bytes=TIER_BYTES), device="cuda") as session:
        peaks["adoption"] = gpu.count("peak")
        gpu.reset_peak()
        rows, periods = steps_of(gpu, training, request["kinds"], session)
        peaks["training"] = gpu.count("peak")
        gpu.reset_peak()
    peaks["end"] = gpu.count("peak")
    found: Row = {"rows": rows, "periods_ms": periods, "driver": peaks, "stats": vars(session.stats),
                  "unplanned": [str(each) for each in session.unplanned]}  # fmt: skip
    made = session.compressed_plan
    if made is not None and (trace := made.trace()) is not None:
        save_trace(trace, Path(request["trace"]))
    plan = plan_of(session)
    if plan is not None and plan["foreseen_us"] is not None:
        found["plan"] = plan
    return found


if __name__ == "__main__":
    main()

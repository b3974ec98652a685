"""Traces of models too large for most machines, recorded on device meta and timed as a GPU would run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch

import memfit
from benchmarks.common.models import FURTHER, WORKLOADS, Workload
from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Table
from memfit.planning.lifetimes import peak_live
from memfit.tracing.roofline import ACCELERATORS

_NAMES = tuple(workload.name for workload in WORKLOADS)
_ALL = [*WORKLOADS, *FURTHER]
COLUMNS = ["model", "batch", "ops", "storages", "peak GB", "parameters MB", "step ms"]


def record(workload: Workload, accelerator: str) -> tuple[memfit.Trace, int]:
    """Return the workload's trace and the bytes of its parameters."""
    with torch.device("meta"):
        step, parameters = workload.build()
        trace = memfit.record_meta(step, accelerator)
    return trace, sum(p.untyped_storage().nbytes() for p in parameters)


def row(workload: Workload, trace: memfit.Trace, parameter_bytes: int) -> list[str]:
    """Return one line of the table; GB and MB are powers of ten."""
    peak_bytes = peak_live(trace)[0]
    step_ms = sum(op.duration_us for op in trace.ops) / 1000
    return [workload.name, workload.about, str(len(trace.ops)), str(len(trace.storages)), f"{peak_bytes / 1e9:.2f}",
            f"{parameter_bytes / 1e6:.1f}", f"{step_ms:.1f}"]  # fmt: skip


def run(
    folder: Annotated[Path, {"help": "for the traces (benchmarks/traces)"}] = TRACES,
    /,
    *,
    models: Annotated[Sequence[str], {"choices": [workload.name for workload in _ALL]}] = _NAMES,
    accelerator: Annotated[str, {"choices": list(ACCELERATORS)}] = "h100",
    no_tf32: Annotated[bool, {"help": "products of float32 matrices not on tensor cores"}] = False,
) -> Iterator[Result]:
    """Record the models of the peers' table, or the ones named, and write the traces."""
    torch.set_float32_matmul_precision("highest" if no_tf32 else "high")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for workload in (w for w in _ALL if w.name in models):
        trace, parameter_bytes = record(workload, accelerator)
        memfit.save_trace(trace, folder / f"{workload.name}.json.gz")
        rows.append(row(workload, trace, parameter_bytes))
    yield Result("", None, [Table(f"One training iteration on {trace.device}", COLUMNS, rows)])

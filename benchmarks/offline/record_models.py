"""Traces of models too large for most machines, recorded on device meta and timed as a GPU would run them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

import memfit
from benchmarks.common.models import WORKLOADS, Workload
from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Table
from memfit.planning.lifetimes import peak_live
from memfit.tracing.roofline import ACCELERATORS

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("folder", nargs="?", type=Path, default=TRACES, help="for the traces (benchmarks/traces)")
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--accelerator", choices=list(ACCELERATORS), default="h100")
    parser.add_argument("--no-tf32", action="store_true", help="products of float32 matrices not on tensor cores")


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Record every model, or the ones named, and write the traces."""
    torch.set_float32_matmul_precision("highest" if args.no_tf32 else "high")
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for workload in (w for w in WORKLOADS if w.name in args.models):
        trace, parameter_bytes = record(workload, args.accelerator)
        memfit.save_trace(trace, args.folder / f"{workload.name}.json.gz")
        rows.append(row(workload, trace, parameter_bytes))
    yield Result("", None, [Table(f"One training iteration on {trace.device}", COLUMNS, rows)])

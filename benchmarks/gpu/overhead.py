"""Attached with nothing to do: step time in turn with and without a session, and an allocation's time.

Both in one process, on the same model: plain steps, then the same under a budget that needs no swap, and again.
"""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch

import memfit
from benchmarks.common.result import Row, Table
from benchmarks.common.timing import in_turn, ns_a_call
from benchmarks.gpu.accelerator import plain_and_attached, prepare, synchronize, tier_of
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.cells import Note, Request
from benchmarks.gpu.models import SPECS, spec_of
from benchmarks.gpu.training import Training, median_ms

MODELS = ("llama", "resnet50", "gpt2_medium", "vgg16", "gpt2_xl", "resnet152")
WARM, PLANNED, TIMED = 2, 9, 6  # steps: before plain ones count, before attached ones do (a plan is made), that count
PAIRS = 3
_SIZES = (512, 64 << 10, 1 << 20, 64 << 20)
_ROOM = 1.5  # of the plain peak: nothing has to move
_MARGIN = 256 << 20
_CALL = "benchmarks.gpu.overhead:"


def measure(bench: Bench) -> None:
    """Run the cells."""
    common: Row = {"memfit": True, "deterministic": False}
    bench.run("allocations", f"{_CALL}allocations", 40.0, **common)
    # A tiny model, whose step is all launching of kernels, is the worst case.
    bench.run("smallest/pairs", f"{_CALL}pairs", 40.0, model="gpt2_medium", **common | {"quick": True})
    for model in bench.options.models or MODELS:
        bench.run(f"{model}/pairs", f"{_CALL}pairs", 60.0, model=model, **common)


def pairs(request: Request, note: Note) -> Row:
    """Return step times of the same model, plain and attached in turn, and what the session had to move."""
    device = prepare(request)
    training = Training(spec_of(request), device).train(2)
    on_gpu = device.type == "cuda"
    budget = int(_ROOM * torch.cuda.max_memory_allocated()) + _MARGIN if on_gpu else 4 << 30
    found: Row = {"batch": training.spec.batch, "budget_bytes": budget, "pairs": []}
    for _ in range(PAIRS):
        plain = _step_ms(training, WARM)
        with memfit.session(budget, tier_of(device), device=device) as session:
            attached = _step_ms(training, PLANNED)
            stats = session.stats
        found["pairs"].append({"plain_ms": plain, "attached_ms": attached, "bytes_out": stats.bytes_out,
                               "plans": stats.plans, "plan_mismatches": stats.plan_mismatches})  # fmt: skip
        note(found)
    return found


def _step_ms(training: Training, warm: int) -> float:
    """Return the median time of a step after so many that do not count."""
    gc.collect()
    training.steps.clear()
    return median_ms(training.train(warm + TIMED).times_ms(), TIMED)["step"]


def allocations(request: Request, note: Note) -> Row:
    """Return the time of an allocation with its free, in torch's allocator and in a session's arena, by size."""
    device = prepare(request)
    count, rows = (2_000 if request["quick"] else 50_000), []
    for size in _SIZES:
        row: Row = {"size_bytes": size}
        for how, once in _ways(device, size).items():
            measure = functools.partial(ns_a_call, once, count, functools.partial(synchronize, device))
            ns = in_turn(plain_and_attached(device, measure), 3)
            row[how] = {name: statistics.median(times) for name, times in ns.items()}
        rows.append(row)
        note({"sizes": rows})
    return {"sizes": rows}


def _ways(device: torch.device, size: int) -> dict[str, Callable[[], Any]]:
    """Return ways to allocate: a storage, without an op; by the allocator's own function; a tensor, by an op."""
    ways: dict[str, Callable[[], Any]] = {
        "storage": lambda: torch.UntypedStorage(size, device=device),
        "empty": lambda: torch.empty(size, dtype=torch.uint8, device=device),
    }
    if device.type == "cuda":
        stream = torch.cuda.current_stream().cuda_stream
        allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
        ways["raw"] = lambda: delete(allocate(size, stream))
    return ways


def tables(cells: Row) -> list[Table]:
    """Return the tables of what there is."""
    done = measured(cells)
    rows = [_row(model, done[f"{model}/pairs"]) for model in (*SPECS, "smallest") if f"{model}/pairs" in done]
    columns = ["model", "batch", "plain ms", "attached / plain", "range", "GiB moved"]
    steps = Table("Attached, with room for everything: step time", columns, rows)
    sizes = done.get("allocations", {}).get("sizes", [])
    rows = [[f"{row['size_bytes']:,} B", how, f"{row[how]['plain_ns']:.0f}", f"{row[how]['attached_ns']:.0f}",
             f"{row[how]['attached_ns'] - row[how]['plain_ns']:+.0f}"]
            for row in sizes for how in row if how != "size_bytes"]  # fmt: skip
    alone = Table("One allocation and its free", ["size", "by", "plain ns", "attached ns", "more"], rows)
    return [table for table in (steps, alone) if table.rows]


def _row(model: str, found: Row) -> list[str]:
    ratios = [pair["attached_ms"] / pair["plain_ms"] for pair in found["pairs"]]
    plain = statistics.median(pair["plain_ms"] for pair in found["pairs"])
    moved = sum(pair["bytes_out"] for pair in found["pairs"]) / (1 << 30)
    return [model, str(found["batch"]), f"{plain:.2f}", f"{statistics.median(ratios):.4f}x",
            f"{min(ratios):.4f} to {max(ratios):.4f}", f"{moved:.2f}"]  # fmt: skip

"""Attached with nothing to do: step time in turn with and without a session, and an allocation's time.

Both in one process, on the same model: plain steps, then the same under a budget that needs no swap, and again. Where
that fails, processes in turn (plain, attached, plain, attached).
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common.result import Table
from benchmarks.common.timing import in_turn, ns_a_call
from benchmarks.gpu.accelerator import prepare, synchronize, tier_of
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.cells import Note
from benchmarks.gpu.models import SPECS, spec_of
from benchmarks.gpu.training import Training, median_ms

MODELS = ("llama", "resnet50", "gpt2_medium", "vgg16", "gpt2_xl", "resnet152")
WARM, PLANNED, TIMED = 2, 9, 6  # steps: before plain ones count, before attached ones do (a plan is made), that count
PAIRS = 3
_LIMIT_S, _ABAB_S = 60.0, 40.0
_SIZES = (512, 64 << 10, 1 << 20, 64 << 20)
_ROOM = 1.5  # of the plain peak: nothing has to move
_MARGIN = 256 << 20
_CALL = "benchmarks.gpu.overhead:"


def measure(bench: Bench) -> None:
    """Run the cells."""
    bench.run("allocations", f"{_CALL}allocations", 40.0, memfit=True, deterministic=False)
    bench.run("smallest/pairs", f"{_CALL}smallest", 40.0, memfit=True, model="gpt2_medium", deterministic=False)
    for model in bench.options.models or MODELS:
        common: dict[str, Any] = {"model": model, "deterministic": False}
        found = bench.run(f"{model}/pairs", f"{_CALL}pairs", _LIMIT_S, memfit=True, **common)
        if found is None and bench.tried(f"{model}/pairs"):
            for turn in range(2):
                for name, attached in (("plain", False), ("attached", True)):
                    bench.run(f"{model}/{name} {turn + 1}", f"{_CALL}alone", _ABAB_S, memfit=attached,
                              attached=attached, **common)  # fmt: skip


def smallest(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Measure a tiny model, whose step is all launching of kernels: the worst case."""
    return pairs(request | {"quick": True}, note)


def pairs(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return step times of the same model, plain and attached in turn, and what the session had to move."""
    import memfit

    device = prepare(request)
    training = Training(spec_of(request), device).train(2)
    on_gpu = device.type == "cuda"
    budget = int(_ROOM * torch.cuda.max_memory_allocated()) + _MARGIN if on_gpu else 4 << 30
    found: dict[str, Any] = {"batch": training.spec.batch, "budget_bytes": budget, "pairs": []}
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


def alone(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the step time of a process that is plain, or attached from the start."""
    import memfit

    device = prepare(request)
    if not request["attached"]:
        return {"ms": _step_ms(Training(spec_of(request), device), PLANNED)}
    with memfit.session(None, tier_of(device), device=device):
        return {"ms": _step_ms(Training(spec_of(request), device), PLANNED)}


def allocations(request: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return the time of an allocation with its free, in torch's allocator and in a session's arena, by size."""
    device = prepare(request)
    count, rows = (2_000 if request["quick"] else 50_000), []
    for size in _SIZES:
        row: dict[str, Any] = {"size_bytes": size}
        for how, once in _ways(device, size).items():
            ns = in_turn(_plain_and_attached(once, count, device), 3)
            row[how] = {name: statistics.median(times) for name, times in ns.items()}
        rows.append(row)
        note({"sizes": rows})
    return {"sizes": rows}


def _plain_and_attached(once: Callable[[], Any], count: int, device: torch.device) -> dict[str, Callable[[], float]]:
    import memfit

    def plain() -> float:
        return ns_a_call(once, count, lambda: synchronize(device))

    def attached() -> float:
        with memfit.session(1 << 30, tier_of(device), device=device, plan=False):
            return plain()

    return {"plain_ns": plain, "attached_ns": attached}


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


def ratios(cells: dict[str, Any], model: str) -> list[float]:
    """Return attached / plain, of each pair."""
    done = measured(cells)
    if f"{model}/pairs" in done:
        return [pair["attached_ms"] / pair["plain_ms"] for pair in done[f"{model}/pairs"]["pairs"]]
    turns = [(done.get(f"{model}/plain {turn}"), done.get(f"{model}/attached {turn}")) for turn in (1, 2)]
    return [attached["ms"] / plain["ms"] for plain, attached in turns if plain and attached]


def tables(cells: dict[str, Any]) -> list[Table]:
    """Return the tables of what there is."""
    rows = [_row(cells, model, each) for model in [*SPECS, "smallest"] if (each := ratios(cells, model))]
    columns = ["model", "batch", "plain ms", "attached / plain", "range", "GiB moved"]
    steps = Table("Attached, with room for everything: step time", columns, rows)
    sizes = (cells.get("allocations", {}).get("result") or {}).get("sizes", [])
    rows = [[f"{row['size_bytes']:,} B", how, f"{row[how]['plain_ns']:.0f}", f"{row[how]['attached_ns']:.0f}",
             f"{row[how]['attached_ns'] - row[how]['plain_ns']:+.0f}"]
            for row in sizes for how in row if how != "size_bytes"]  # fmt: skip
    alone = Table("One allocation and its free", ["size", "by", "plain ns", "attached ns", "more"], rows)
    return [table for table in (steps, alone) if table.rows]


def _row(cells: dict[str, Any], model: str, each: list[float]) -> list[str]:
    result = cells.get(f"{model}/pairs", {}).get("result") or {}
    together = result.get("pairs") or []
    plain = f"{statistics.median(pair['plain_ms'] for pair in together):.2f}" if together else "-"
    moved = f"{sum(pair['bytes_out'] for pair in together) / (1 << 30):.2f}" if together else "-"
    return [model, str(result.get("batch", "-")), plain, f"{statistics.median(each):.4f}x",
            f"{min(each):.4f} to {max(each):.4f}", moved]  # fmt: skip

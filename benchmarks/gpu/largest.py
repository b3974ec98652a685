"""The largest batch and the deepest model that train within 16 GiB: plainly, in the other ways, and with memfit.

The others are held to the budget by torch's own limit on its allocator; what counts is whether three steps run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

import memfit
from benchmarks.common.result import GIB, Row, Table
from benchmarks.gpu.accelerator import prepare, release, tier_of
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cells import Note, Request, describe
from benchmarks.gpu.models import spec_of
from benchmarks.gpu.training import MODES, Training, median_ms

BUDGET_BYTES = 16 * GIB
_QUICK_BUDGET_BYTES = 24 << 20
STEPS = 3
# (model, what grows, the first size tried, the largest): a size that fits is doubled.
SEARCHES = (("gpt2_medium", "batch", 4, 128), ("llama", "layers", 16, 128), ("resnet50", "batch", 128, 2048))
_QUICK = (("gpt2_medium", "batch", 4, 32), ("llama", "layers", 2, 8))
WAYS = ("memfit", "plain", "save_on_cpu", "checkpoint", "selective", "expandable", "compile")
_LIMIT_S = 40.0
_SPARE_S = 8.0  # a try may take so long
_SHARE = 0.06  # of the largest size found: less may lie between it and the smallest that does not fit
_DEPTH_BATCH = 2


def measure(bench: Bench) -> None:
    """Run the cells: one is a search."""
    quick = bench.options.quick
    for model, grows, first, most in _QUICK if quick else SEARCHES:
        if bench.options.models and model not in bench.options.models:
            continue
        for way in WAYS:
            bench.run(f"{model}/{grows}/{way}", "benchmarks.gpu.largest:search", _LIMIT_S, memfit=way == "memfit",
                      model=model, grows=grows, mode=way, first=first, most=most,
                      budget_bytes=_QUICK_BUDGET_BYTES if quick else BUDGET_BYTES, deterministic=False)  # fmt: skip


def search(request: Request, note: Note) -> Row:
    """Return the largest size that trains in the request's way within its budget."""
    device = prepare(request)
    end = time.monotonic() + request["limit_s"] - _SPARE_S
    if request["mode"] != "memfit" and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(request["budget_bytes"] / total, device)
    tries: list[Row] = []

    def fits(size: int) -> bool:
        tries.append(_try(request, device, size))
        note({"tries": tries})
        return bool(tries[-1]["fits"])

    good, bad = largest(fits, request["first"], request["most"], lambda: time.monotonic() > end)
    return {"tries": tries, "largest": good, "too_large": bad, "most": request["most"], "grows": request["grows"]}


def largest(
    fits: Callable[[int], bool], first: int, most: int, enough: Callable[[], bool] = lambda: False
) -> tuple[int, int | None]:
    """Return the largest size found to fit, from 0 to `most`, and the smallest found not to (None: none was).

    Doubles from `first` until one does not fit, then halves what lies between until that is a small share of the
    largest. `enough` ends the search early.
    """
    good, bad = 0, None
    while (good < most if bad is None else bad - good > max(_SHARE * good, 1)) and not enough():
        size = min(2 * good or first, most) if bad is None else (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good, bad


def _try(request: Request, device: torch.device, size: int) -> Row:
    """Train some steps at one size. Only want of memory is an answer; any other error ends the search."""
    release(device)
    started, found = time.monotonic(), {"size": size, "fits": False, "why": ""}
    try:
        found |= {"fits": True} | _train(request, device, size)
    except (torch.OutOfMemoryError, memfit.BudgetError, memfit.TierError) as error:
        found["why"] = describe(error)[:300]
    return found | {"seconds": round(time.monotonic() - started, 2)}


def _train(request: Request, device: torch.device, size: int) -> Row:
    sizes = {request["grows"]: size}
    if request["grows"] == "layers" and not request.get("quick"):
        sizes["batch"] = _DEPTH_BATCH
    spec, limited = spec_of(request | sizes), request["mode"] == "memfit"
    budget = request["budget_bytes"]  # in which all ops are to fit
    inside = memfit.session(budget, tier_of(device), device=device, map="never") if limited else nullcontext()
    with inside as session:
        training = Training(spec, device, "plain" if limited else request["mode"]).train(STEPS)
        found: Row = {"step_ms": median_ms(training.times_ms(), 1)["step"]}
        if device.type == "cuda":
            found["allocated_bytes"] = torch.cuda.max_memory_allocated()
        if session is not None:
            found["footprint_bytes"] = session.stats.peak_footprint_bytes
        del training
        gc.collect()
    return found


def answer(cell: Row) -> str:
    """Return a search's result: exact, or "at least" where it was cut short."""
    result = cell.get("result") or {}
    tries = result.get("tries", [])
    good = max((t["size"] for t in tries if t["fits"]), default=0)
    bad = min((t["size"] for t in tries if not t["fits"]), default=None)
    if not tries:
        return "-"
    if bad is None:
        return f">= {good}"
    return str(good) if result.get("largest") is not None else f"{good} to {bad - 1}"


def tables(cells: Row) -> list[Table]:
    """Return the tables of what there is."""
    searches = list(dict.fromkeys(key.rpartition("/")[0] for key in cells))
    rows = []
    for way in WAYS:
        found = [cells.get(f"{search}/{way}", {}) for search in searches]
        rows.append([MODES.get(way, way), *(_cell(cell) for cell in found)])
    columns = ["way", *(search.replace("/", ", largest ") for search in searches)]
    return [Table("Within the budget (16 GiB)", columns, rows)] if searches else []


def _cell(cell: Row) -> str:
    tries = (cell.get("result") or {}).get("tries", [])
    fitting = [t for t in tries if t["fits"]]
    if not fitting:
        return answer(cell)
    last = max(fitting, key=lambda t: int(t["size"]))
    return f"{answer(cell)} ({last['step_ms'] / last['size']:.1f} ms each)"

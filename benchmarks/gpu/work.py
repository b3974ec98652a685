"""Cells that train a model: plainly, in another way of saving memory, and inside a budget."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import torch

import memfit
from benchmarks.common.result import GIB, Row
from benchmarks.common.waiting import wait_for_plans
from benchmarks.gpu.accelerator import PeakSampler, prepare, release, synchronize, tier_of
from benchmarks.gpu.cells import Note, Request
from benchmarks.gpu.models import Spec, spec_of
from benchmarks.gpu.training import CHUNK, Training, median_ms

# The bytes that a plain run should take at its peak; and about how many where the batch is set anew.
LOW, HIGH, TARGET = 20 * GIB, 60 * GIB, 28 * GIB
TIMED = 8  # steps under the last plan that a median is taken of
_SAID = 300  # characters of an error
_CHUNKS = 1024  # a fingerprint's part of a budget, by elements of 8 bytes, some times over
_SPARE_S = 4.0  # for a cell to end in, when it comes near its limit
_NOTED = ("bytes_out", "bytes_in", "plans", "swaps", "derailments", "plan_mismatches", "stall_ns", "copy_ns")


def plain(request: Request, note: Note) -> Row:
    """Train in the request's mode without memfit; with `calibrate` at a batch that fills the wanted memory.

    In mode plain weights are fingerprinted after each step from `steps` on to `most_steps`, since a session may need
    more steps to come to a plan; with `repeat` it is all done once more, to tell whether the bits repeat at all.
    """
    device, spec = prepare(request | {"strict": True}), spec_of(request)
    mode, steps = request["mode"], request["steps"]
    unrepeatable = _without_repeatable(spec, device, mode)
    if request["calibrate"] and device.type == "cuda":
        spec = _calibrated(spec, device, note)
    found = {"batch": spec.batch, "mode": mode, "strict": not unrepeatable, "unrepeatable": unrepeatable}
    note(found)
    release(device)
    with PeakSampler(device) as sampler:
        found |= _steps(spec, device, mode, steps, request["most_steps"] if mode == "plain" else steps)
    release(device)
    found["peak_bytes"] = found.get("allocated_bytes") or _peak_without_gpu(spec, device, mode)
    found["driver"] = sampler.driver()
    note(found)
    if request.get("repeat"):
        again = Training(spec, device, mode).train(steps)
        bits = again.loss_bits(), again.fingerprint()
        found["repeats"] = bits == (found["losses"][:steps], found["fingerprints"][str(steps)])
    return found


def _without_repeatable(spec: Spec, device: torch.device, mode: str) -> str:
    """Return what torch says of the first op without an algorithm that repeats itself; it takes others from then on."""
    try:
        Training(replace(spec, batch=1), device, mode).train(1)
        synchronize(device)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        torch.use_deterministic_algorithms(True, warn_only=True)
        return str(error).partition("\n")[0][:_SAID]
    return ""


def _steps(spec: Spec, device: torch.device, mode: str, steps: int, most: int) -> Row:
    training = Training(spec, device, mode).train(steps)
    times = training.times_ms()  # before fingerprints stand between the steps
    late = max(steps - 4, 1)
    found: Row = {"times_ms": times, "median_ms": median_ms(times, late)}
    found["period_ms"] = training.period_ms(late)
    if device.type == "cuda":
        found |= {"allocated_bytes": torch.cuda.max_memory_allocated(),
                  "reserved_bytes": torch.cuda.max_memory_reserved(),
                  "expandable": any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())}  # fmt: skip
    prints = {str(steps): training.fingerprint()}
    prints |= {str(done): training.train(1).fingerprint() for done in range(steps + 1, most + 1)}
    return found | {"losses": training.loss_bits(), "fingerprints": prints}


def _calibrated(spec: Spec, device: torch.device, note: Note) -> Spec:
    """Return the model at a batch whose plain run lies in the wanted range; two steps tell."""
    release(device)
    training = Training(spec, device).train(2)
    torch.cuda.synchronize()
    # Gradients are given back after the step: at the peak they are there, and do not grow with the batch.
    fixed = torch.cuda.memory_allocated() + sum(p.nbytes for p in training.model.parameters())
    peak = torch.cuda.max_memory_allocated()
    batch = scaled_batch(spec.batch, spec.multiple, peak, fixed)
    note({"calibration": {"batch": spec.batch, "peak_bytes": peak, "fixed_bytes": fixed, "new_batch": batch}})
    return replace(spec, batch=batch)


def scaled_batch(batch: int, multiple: int, peak_bytes: int, fixed_bytes: int) -> int:
    """Return the batch with which the peak lies in the wanted range; `batch` itself if it does already.

    `fixed_bytes` is what does not grow with the batch: weights, gradients, the optimizer's state.
    """
    if LOW <= peak_bytes <= HIGH:
        return batch
    per_sample = max(peak_bytes - fixed_bytes, 1) / batch
    samples = max(TARGET - fixed_bytes, 0) / per_sample
    return max(int(samples) // multiple * multiple, multiple)


def _peak_without_gpu(spec: Spec, device: torch.device, mode: str) -> int:
    """Return the most that tensors took at once, as a session without a limit tells."""
    with memfit.session(None, "ram", device=device, plan=False) as session:
        Training(spec, device, "plain" if mode.startswith("compile") else mode).train(3)  # sessions see eager ops
    return session.stats.peak_live_bytes


def limited(request: Request, note: Note) -> Row:
    """Train inside `budget_bytes`, from the building of the model on, until the last plan has run some steps.

    Each plan is waited for: what is timed is what comes of it, and not when.
    """
    device, spec = prepare(request), spec_of(request)
    wait_for_plans()
    release(device)
    end = time.monotonic() + request["limit_s"] - _SPARE_S
    facts: Row = {"batch": spec.batch, "budget_bytes": request["budget_bytes"]}
    note(facts)
    sampler = PeakSampler(device)
    try:
        # The sampler ends first: leaving the session brings everything back.
        with memfit.session(request["budget_bytes"], tier_of(device), device=device) as session, sampler:
            facts |= _inside(session, spec, device, request, end, note)
    except memfit.BudgetError as error:
        facts |= {"infeasible": str(error)[:600], "required_bytes": error.required_bytes}
    release(device)
    return facts | {"driver": sampler.driver()}


def _inside(session: Any, spec: Spec, device: torch.device, request: Request, end: float, note: Note) -> Row:
    from memfit.running import engine

    steps, most = request["steps"], request["most_steps"]
    training = Training(spec, device)
    rows: list[Row] = []
    while len(rows) < most and time.monotonic() < end and not (len(rows) >= steps and _settled(rows)):
        training.step()
        stats = session.stats
        rows.append({name: getattr(stats, name) for name in _NOTED} | {"planned": bool(engine.load().has_plan())})
        if not rows[-1]["planned"]:  # a note takes time, which steps by plan are not to be charged with
            note({"rows": rows})
    times = training.times_ms()
    found = {"times_ms": times, "rows": rows, "planned_steps": _planned_steps(rows), "settled": _settled(rows),
             "plan": plan_of(session), "period_ms": training.period_ms(TIMED),
             "median_ms": median_ms(times, min(TIMED, len(times))), "moved": moved(rows),
             "stats": asdict(session.stats)}  # fmt: skip
    note(found)
    return found | _bits_inside(training, request["budget_bytes"], note)


def _bits_inside(training: Training, budget_bytes: int, note: Note) -> Row:
    """Return the bits of losses and weights; the latter's sums must fit the budget too."""
    found: Row = {"losses": training.loss_bits(), "fingerprints": {}}
    note(found)
    chunk = min(max(budget_bytes // _CHUNKS, 1 << 10), CHUNK)
    try:
        found["fingerprints"] = {str(len(training.steps)): training.fingerprint(chunk)}
    except memfit.BudgetError as error:
        found["fingerprint_error"] = str(error)[:300]
    return found


def plan_of(session: Any) -> Row | None:
    """Return what the plan in force does, and the microseconds of its iteration and of its ops; None without one."""
    planned = session.planned
    if planned is None or planned.plan is None:
        return None
    foreseen_us = None if planned.predicted is None else planned.predicted.iteration_us
    return {"swaps": len(planned.plan.swaps), "drops": len(planned.dropped), "compute_us": planned.compute_us,
            "foreseen_us": foreseen_us}  # fmt: skip


def _planned_steps(rows: list[Row]) -> int:
    """Return how many steps the last ones are that ran wholly by the last plan."""
    count = 0
    for before, row in zip(reversed(rows[:-1]), reversed(rows[1:]), strict=True):
        is_another = row["plans"] > before["plans"]
        if not (before["planned"] and row["planned"]) or is_another or row["derailments"] > before["derailments"]:
            break
        count += 1
    return count


def _settled(rows: list[Row]) -> bool:
    return _planned_steps(rows) >= TIMED


def moved(rows: list[Row]) -> dict[str, float]:
    """Return the bytes moved each way in a step, over the last steps."""
    if len(rows) < 2:
        return {}
    count = min(TIMED, len(rows) - 1)
    return {way: (rows[-1][f"bytes_{way}"] - rows[-1 - count][f"bytes_{way}"]) / count for way in ("out", "in")}

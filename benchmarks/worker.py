"""Runs one example, plainly or in a session, and prints what each step cost as JSON. Used by the benchmarks."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import time
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import memfit
from memfit.baselines.clairvoyant import clairvoyant
from memfit.ir import Trace, align_up
from memfit.planning.lifetimes import minimum_budget, operands, peak_live
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import parse_tier
from memfit.running.scripts.script import run_as_main
from memfit.running.session import Session


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request.get("threads", torch.get_num_threads()))
    steps: list[dict[str, Any]] = []
    session = None if request["budget"] == "plain" else session_of(request)
    error = ""

    def note(*_: Any) -> None:
        moved = {}
        if session is not None:
            s = session.stats
            moved = {"bytes_out": s.bytes_out, "bytes_in": s.bytes_in, "relocated": s.bytes_relocated, "ops": s.ops,
                     "checked": s.bytes_checked, "check_ns": s.check_ns}  # fmt: skip
        steps.append({"at": time.perf_counter(), **moved})
        if session is not None and len(steps) == request.get("reset_peaks_at"):
            engine.load().reset_peaks()

    hook = register_optimizer_step_post_hook(note)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            with session or contextlib.nullcontext():
                run_as_main(request["script"], request["arguments"])
        except memfit.BudgetError as failure:
            error = str(failure)
    hook.remove()
    result: dict[str, Any] = {"steps": steps, "error": error}
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if session is not None:
        result |= about(session)
    print(json.dumps(result))


def session_of(request: dict[str, Any]) -> Session:
    tier = parse_tier(request.get("tier", "disk"))
    if request.get("link"):
        tier = DisturbedTier(tier.kind, tier.folder, tier.capacity_bytes, link_bytes_per_second=request["link"])
    plan, measures = request.get("plan", True), request.get("measures", False)
    return Session(request["budget"], tier, device="cpu", plan=plan, measures=measures)


def about(session: Session) -> dict[str, Any]:
    """Return the session's final figures and what its trace says is possible."""
    s = session.stats
    facts: dict[str, Any] = {"peak_footprint": s.peak_footprint_bytes, "budget": s.budget_bytes,
                             "peak_live": s.peak_live_bytes, "plans": s.plans,
                             "planned_footprint": s.planned_footprint_bytes, "allocations": s.allocations,
                             "planned_allocations": s.planned_allocations,
                             "plan_mismatches": s.plan_mismatches}  # fmt: skip
    planned, measured = session.planned, session.measured
    if planned is not None and planned.plan is not None and planned.predicted is not None:
        facts |= {"swaps": len(planned.plan.swaps), "predicted_us": planned.predicted.iteration_us,
                  "compute_us": planned.predicted.compute_us, "predicted_stall_us": planned.predicted.stall_us,
                  "derailments": s.derailments}  # fmt: skip
        if measured is not None:
            facts |= {"measured_us": measured.iteration_us, "stall_us": measured.stall_us}
    trace = session.recorded
    if trace is None:
        return facts
    facts |= {"trace_peak": peak_live(trace, aligned=True)[0], "minimum": minimum_budget(trace)[0],
              "ops": len(trace.ops), "largest_working_set": largest_working_set(trace)}  # fmt: skip
    if s.budget_bytes:
        try:
            best = clairvoyant(trace, s.budget_bytes)
            facts |= {"clairvoyant_out": best.bytes_out, "clairvoyant_in": best.bytes_in}
        except memfit.BudgetError:
            pass
    return facts


def largest_working_set(trace: Trace) -> int:
    """Return the most that one op reads, writes and allocates at once: plain sums, no allowance for placement."""
    sizes = [align_up(storage.size_bytes, trace.alignment) for storage in trace.storages]
    events: list[int] = [0] * trace.ticks
    for storage, size in zip(trace.storages, sizes, strict=True):
        if storage.alloc_tick >= 0:
            events[storage.alloc_tick] += size
        if storage.free_tick < trace.ticks:
            events[storage.free_tick] -= size if storage.alloc_tick >= first_tick_of(trace, storage.free - 1) else 0
    largest = 0
    for index, op in enumerate(trace.ops):
        end = trace.ops[index + 1].first_tick if index + 1 < len(trace.ops) else trace.ticks
        allocated = peak = 0
        for change in events[op.first_tick : end]:
            allocated += change
            peak = max(peak, allocated)
        largest = max(largest, peak + sum(sizes[s] for s in operands(trace, index)))
    return largest


def first_tick_of(trace: Trace, op: int) -> int:
    """Return the tick at which an op begins; frees of what is older are not the op's own."""
    return trace.ops[max(op, 0)].first_tick


if __name__ == "__main__":
    main()

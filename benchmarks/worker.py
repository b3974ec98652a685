"""Runs one example, plainly or in a session, and prints what each step cost as JSON. Used by the benchmarks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import memfit
from benchmarks.common.resident import Resident
from benchmarks.common.waiting import keep_plans, wait_for_plans
from memfit.baselines.clairvoyant import clairvoyant
from memfit.ir import Trace, align_up
from memfit.planning.lifetimes import births, minimum_budget, operands, peak_live
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import parse_tier
from memfit.running.host import peak_rss_bytes
from memfit.running.scripts.script import run_as_main
from memfit.running.session import Session
from memfit.running.session.passes import Passes

COPYING_S = 0.25  # before a stop, so that no copy under way lasts until the next turn and tells of a slow link


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request.get("threads", torch.get_num_threads()))
    if request.get("waits"):
        wait_for_plans()
    steps: list[dict[str, Any]] = []
    session = None if request["budget"] == "plain" else session_of(request)
    error = ""

    def note(*_: Any) -> None:
        done = {} if session is None else done_by(session)
        stops = (len(steps) + 1) % request.get("steps_a_turn", sys.maxsize) == 0
        steps.append({"at": time.perf_counter(), "stopped": stops, **done})
        if session is not None and len(steps) == request.get("reset_peaks_at"):
            engine.load().reset_peaks()
        if len(steps) == request.get("keeps_plans_from"):
            keep_plans()
        if stops:
            time.sleep(COPYING_S)
            os.kill(os.getpid(), signal.SIGSTOP)  # until it is this worker's turn again: `benchmarks.common.in_turn`

    hook = register_optimizer_step_post_hook(note)
    passes = Passes(note) if request.get("passes") else None  # a step is a forward pass
    counted = Resident(every_s=0.1) if request.get("counts_pages") else None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            with (
                session or contextlib.nullcontext(),
                passes.watched() if passes else contextlib.nullcontext(),
                counted.watching() if counted else contextlib.nullcontext(),
            ):
                run_as_main(request["script"], request["arguments"])
        except memfit.BudgetError as failure:
            error = str(failure)
    hook.remove()
    result = {"steps": steps, "error": error, "peak_rss_bytes": peak_rss_bytes()}
    if counted is not None:
        result |= {"peak_page_bytes": counted.peak_bytes}
    if session is not None:
        result |= {"stats": vars(session.stats), "plan": about_plan(session), "trace": about_trace(session)}
    print(json.dumps(result))


def done_by(session: Session) -> dict[str, Any]:
    """Return what a session did until now."""
    return vars(session.stats) | {
        "planned_iterations": session.planned_iterations,
        "plan_searches": session.plan_searches,
    }


def session_of(request: dict[str, Any]) -> Session:
    tier = parse_tier(request.get("tier", "disk"))
    if request.get("link"):
        tier = DisturbedTier(tier.kind, tier.folder, tier.capacity_bytes, compress=tier.compress,
                             link_bytes_per_second=request["link"])  # fmt: skip
    plan, measures = request.get("plan", True), request.get("measures", False)
    moves = request.get("moves", "joint")
    split = request.get("split", "never")
    mapping = request.get("map", "never")  # a budget that is too small is to be told from one that is not
    return Session(request["budget"], tier, device="cpu", plan=plan, moves=moves, measures=measures, map=mapping,
                   split=split)  # fmt: skip


def about_plan(session: Session) -> dict[str, Any]:
    """Return what the last plan that swaps foresaw of an iteration, and what was measured of it."""
    planned, measured = session.planned, session.measured
    if planned is None or planned.plan is None or planned.predicted is None:
        return {}
    found = planned.predicted
    facts = {"swaps": len(planned.plan.swaps), "drops": len(planned.dropped), "predicted_us": found.iteration_us,
             "compute_us": found.compute_us, "predicted_stall_us": found.stall_us}  # fmt: skip
    if measured is not None:
        facts |= {"measured_us": measured.iteration_us, "stall_us": measured.stall_us}
    return facts


def about_trace(session: Session) -> dict[str, Any]:
    """Return what the recorded iteration needs, and what the clairvoyant policy moves in it; sizes in bytes."""
    trace = session.recorded
    if trace is None:
        return {}
    facts = {"peak": peak_live(trace, aligned=True)[0], "minimum": minimum_budget(trace)[0], "ops": len(trace.ops),
             "recurring": sum(storage.size_bytes for storage in trace.storages if trace.recurs(storage)),
             "largest_working_set": largest_working_set(trace), "stored": stored_by_category(trace)}  # fmt: skip
    if budget_bytes := session.stats.budget_bytes:
        with contextlib.suppress(memfit.BudgetError):
            best = clairvoyant(trace, budget_bytes)
            facts |= {"clairvoyant_out": best.bytes_out, "clairvoyant_in": best.bytes_in}
    return facts


def stored_by_category(trace: Trace) -> dict[str, list[int]]:
    """Return, of what left for a tier that compresses, the bytes and those that were written, by category."""
    found: dict[str, list[int]] = {}
    for storage in trace.storages:
        if storage.stored_bytes:
            sizes = found.setdefault(storage.category.value, [0, 0])
            sizes[0] += storage.size_bytes
            sizes[1] += storage.stored_bytes
    return found


def largest_working_set(trace: Trace) -> int:
    """Return the most that one op reads, writes and allocates at once: plain sums, no allowance for placement."""
    sizes = [align_up(storage.size_bytes, trace.alignment) for storage in trace.storages]
    ends = [op.first_tick for op in trace.ops[1:]] + [trace.ticks]
    change = np.zeros(trace.ticks + 1, dtype=np.int64)  # at each tick, of what the op under way has allocated itself
    for s, op in births(trace).items():
        storage = trace.storages[s]
        change[storage.alloc_tick] += sizes[s]
        change[min(storage.free_tick, ends[op])] -= sizes[s]
    own = np.cumsum(change)
    return max(
        int(own[op.first_tick : end].max(initial=0)) + sum(sizes[s] for s in operands(trace, index))
        for index, (op, end) in enumerate(zip(trace.ops, ends, strict=True))
    )


if __name__ == "__main__":
    main()

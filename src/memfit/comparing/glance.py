"""A trace and a plan at a glance."""

from __future__ import annotations

from memfit.comparing.names import op_info
from memfit.comparing.page.peaks import live_by_category
from memfit.ir import Plan, Trace
from memfit.planning.floor import floor_of
from memfit.reporting.glance import Glance
from memfit.reporting.names import full_op
from memfit.simulate import load_bytes
from memfit.units import format_bytes, format_part, format_us


def trace_at_a_glance(trace: Trace) -> Glance:
    """Return the iteration's peak, its floor, and its memory over the ops."""
    load, floor = load_bytes(trace), floor_of(trace)
    peak = int(load.max(initial=0))
    rows = (
        ("peak", f"{format_bytes(peak)} in {full_op(op_info(trace, int(load.argmax())))}"),
        ("floor", f"{format_part(floor.budget_bytes, peak)}, set by {full_op(op_info(trace, floor.op))}"),
        ("ops", f"{len(trace.ops):,} in {format_us(sum(op.duration_us for op in trace.ops))}"),
        ("storages", f"{len(trace.storages):,}"),
        ("recorded", f"iteration {trace.iteration} on {trace.device}, torch {trace.torch_version}"),
    )
    return Glance(f"Trace of {trace.script or 'an iteration'}", rows, live_by_category(trace))


def plan_at_a_glance(plan: Plan) -> Glance:
    """Return the plan's budget, and what it moves."""
    out = sum(swap.size_bytes for swap in plan.swaps)
    back = sum(swap.size_bytes for swap in plan.swaps if swap.returns)
    rows = [
        ("budget", format_bytes(plan.budget_bytes)),
        ("swaps", f"{len(plan.swaps):,}: {format_bytes(out)} out and {format_bytes(back)} in an iteration"),
        ("recomputes", f"{len(plan.recomputes):,}"),
        ("made", f"by policy {plan.policy} for machine {plan.machine}"),
    ]
    if plan.footprint_bytes:
        rows.insert(1, ("footprint", format_bytes(plan.footprint_bytes)))
    return Glance(f"Plan for an iteration of {plan.op_count:,} ops", tuple(rows))

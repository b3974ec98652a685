"""A notebook's glances: what is shown of each value that memfit returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memfit.arrays import Int64Array
from memfit.comparing.glance import plan_at_a_glance, trace_at_a_glance
from memfit.integrations.notebook.cells import trace_with_cells
from memfit.ir import Plan, Trace
from memfit.reporting.glance import Glance
from memfit.running.planned.engine_plan import EnginePlan
from memfit.running.session import Session, Stats
from memfit.units import format_bytes, format_share, format_us


def glance_at(value: Any, shell: Any) -> Glance:
    """Return what is shown of `value`."""
    if isinstance(value, Trace):
        return trace_at_a_glance(trace_with_cells(value, shell))
    if isinstance(value, Plan):
        return plan_at_a_glance(value)
    if isinstance(value, EnginePlan):
        return _planned(value)
    return _stats(value) if isinstance(value, Stats) else _session(value)


def _planned(planned: EnginePlan) -> Glance:
    if planned.plan is None or planned.predicted is None:
        return Glance("Plan in which nothing leaves the arena", ())
    took = planned.predicted.iteration_us
    added = format_share(planned.added_us / planned.compute_us) if planned.compute_us else "nothing"
    predicted = (("predicted", f"{format_us(took)} an iteration, {added} added"),)
    glance = plan_at_a_glance(planned.plan)
    return Glance(glance.title, glance.rows + predicted)


def _stats(stats: Stats) -> Glance:
    waited_us = stats.waited_ns / 1e3
    rows = [
        ("budget", format_bytes(stats.budget_bytes) if stats.budget_bytes else "none"),
        ("arena peak", format_bytes(stats.peak_footprint_bytes)),
        ("peak of live tensors", format_bytes(stats.peak_live_bytes)),
        ("moved", f"{format_bytes(stats.bytes_out)} out, {format_bytes(stats.bytes_in)} in"),
        ("made again", f"{stats.recomputations:,} storages, {format_bytes(stats.bytes_discarded)} discarded"),
        ("waited for copies", format_us(waited_us)),
        ("iterations", f"{stats.iterations:,}, of {stats.ops:,} ops"),
        ("from before the session", format_bytes(stats.adopted_bytes)),
    ]
    if stats.growths:
        rows.insert(1, ("exceeded for an op", f"{stats.growths:,} times, by {format_bytes(stats.peak_growth_bytes)}"))
    return Glance("Statistics of a session", tuple(rows))


def _session(session: Session) -> Glance:
    if session.began is None:
        return Glance("A session that has not begun", ())
    rows = (("iterations by a plan", f"{session.planned_iterations:,}"), ("tier", str(session.tier)))
    live: Mapping[str, Int64Array] = {}
    if session.recorded is not None:
        live = trace_at_a_glance(session.recorded).live
    return Glance("A session", _stats(session.stats).rows + rows, live)

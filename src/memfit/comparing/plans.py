"""A plan and what it does to an iteration, in numbers."""

from __future__ import annotations

from collections import defaultdict

from memfit.ir import Direction, Plan, Timeline, Trace
from memfit.reporting.plans import PlanReport, StallInfo
from memfit.simulate import load_bytes

_TOP_STALLS = 5


def report_plan(trace: Trace, plan: Plan, timeline: Timeline) -> PlanReport:
    """Return the report on `plan` for `trace`, with its effect `timeline`."""
    return PlanReport(
        policy=plan.policy,
        machine=plan.machine,
        budget_bytes=plan.budget_bytes,
        unswapped_bytes=int(load_bytes(trace).max()),
        peak_bytes=timeline.peak_bytes,
        footprint_bytes=plan.footprint_bytes,
        host_bytes=timeline.host_bytes,
        swaps=len(plan.swaps),
        bytes_out=timeline.copied_bytes(Direction.OUT),
        bytes_in=timeline.copied_bytes(Direction.IN),
        compute_us=timeline.compute_us,
        iteration_us=timeline.iteration_us,
        overhead=timeline.overhead,
        largest_stalls=_largest_stalls(trace, plan, timeline),
    )


def _largest_stalls(trace: Trace, plan: Plan, timeline: Timeline) -> tuple[StallInfo, ...]:
    total: dict[tuple[int, int, Direction], float] = defaultdict(float)
    for stall in timeline.stalls:
        total[stall.op, stall.swap, stall.direction] += stall.duration_us
    largest = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:_TOP_STALLS]
    return tuple(
        StallInfo(
            op=op,
            name=trace.ops[op].name,
            duration_us=us,
            direction=direction.value,
            storage=plan.swaps[swap].storage,
            size_bytes=plan.swaps[swap].size_bytes,
        )
        for (op, swap, direction), us in largest
    )

"""A plan and what it does to an iteration, in numbers."""

from __future__ import annotations

from collections import defaultdict

from memfit.ir import Direction, Trace
from memfit.planning.joint.judged import Judged
from memfit.reporting.plans import PlanReport, StallInfo
from memfit.simulate import load_bytes

_TOP_STALLS = 5


def report_plan(trace: Trace, found: Judged, bound_us: float | None = None) -> PlanReport:
    """Return the report on the plan `found` for `trace`; no plan of its kind adds less than `bound_us`, if known."""
    plan, timeline = found.plan, found.timeline
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
        recomputes=len(plan.recomputes),
        bytes_recomputed=sum(trace.storages[one.storage].size_bytes for one in plan.recomputes),
        bytes_for_good=sum(trace.storages[one.storage].size_bytes for one in plan.recomputes if not one.returns),
        reruns=sum(found.made.runs_again),
        maps=len(plan.maps),
        compute_us=found.compute_us,
        again_us=found.again_us,
        mapped_us=found.mapped_us,
        stall_us=timeline.stall_us,
        iteration_us=timeline.iteration_us,
        overhead=found.overhead,
        bound_us=bound_us,
        largest_stalls=_largest_stalls(trace, found),
    )


def _largest_stalls(trace: Trace, found: Judged) -> tuple[StallInfo, ...]:
    total: dict[tuple[int, int, Direction], float] = defaultdict(float)
    for stall in found.timeline.stalls:
        total[stall.op, stall.swap, stall.direction] += stall.duration_us
    largest = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:_TOP_STALLS]
    made, swaps = found.made, found.plan.swaps
    return tuple(
        StallInfo(
            op=made.op_of[op],
            name=trace.ops[made.op_of[op]].name,
            runs_again=made.runs_again[op],
            duration_us=us,
            direction=direction.value,
            storage=made.storage_of[swaps[swap].storage],
            size_bytes=swaps[swap].size_bytes,
        )
        for (op, swap, direction), us in largest
    )

"""The report of `memfit plan` and `memfit simulate`, as plain data."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass

from memfit.ir import Direction, Plan, Timeline, Trace
from memfit.simulate import load_bytes
from memfit.units import format_bytes, format_share, format_us

_TOP_STALLS = 5


@dataclass(frozen=True, slots=True)
class StallInfo:
    """An op that waits, and for what: the storage, its bytes, and the way of the copy."""

    op: int
    name: str
    duration_us: float
    direction: str
    storage: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan and its timeline in numbers; `unswapped_bytes` is the peak without the plan.

    `footprint_bytes` is 0 for a plan without addresses.
    """

    policy: str
    machine: str
    budget_bytes: int
    unswapped_bytes: int
    peak_bytes: int
    footprint_bytes: int
    host_bytes: int
    swaps: int
    bytes_out: int
    bytes_in: int
    compute_us: float
    iteration_us: float
    overhead: float
    largest_stalls: tuple[StallInfo, ...]


def report(trace: Trace, plan: Plan, timeline: Timeline) -> PlanReport:
    """Return the report on `plan` for `trace`, which does `timeline`."""
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


def to_json(figures: PlanReport) -> str:
    """Return `figures` as a JSON object, with the names of the dataclasses' fields."""
    return json.dumps(asdict(figures), indent=2)


def summary(figures: PlanReport) -> str:
    """Return `figures` for a person."""
    saved = 1 - figures.peak_bytes / figures.unswapped_bytes if figures.unswapped_bytes else 0.0
    lines = [
        f"{figures.policy} on {figures.machine}: {figures.swaps} swaps",
        f"  memory     {format_bytes(figures.peak_bytes)} of {format_bytes(figures.unswapped_bytes)} "
        f"({format_share(-saved)}), budget {format_bytes(figures.budget_bytes)}",
        f"  time       {format_us(figures.iteration_us)} an iteration, {format_share(figures.overhead)} on "
        f"{format_us(figures.compute_us)} of computation",
        f"  copies     {format_bytes(figures.bytes_out)} out, {format_bytes(figures.bytes_in)} in, "
        f"{format_bytes(figures.host_bytes)} away at most",
    ]
    if figures.footprint_bytes:
        lines.append(f"  addresses  {format_bytes(figures.footprint_bytes)}")
    lines += [
        f"  op {s.op} {s.name} waits {format_us(s.duration_us)} for storage {s.storage} "
        f"({format_bytes(s.size_bytes)}) to come {s.direction}"
        for s in figures.largest_stalls
    ]
    return "\n".join(lines)


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

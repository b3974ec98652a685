"""The report of `memfit plan` and `memfit simulate`: the copies of a plan, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.units import format_bytes, format_share, format_us


@dataclass(frozen=True, slots=True)
class StallInfo:
    """An op that waits, and the copy that it waits for: the storage, its bytes, and the way of the copy."""

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


def to_text(figures: PlanReport) -> str:
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

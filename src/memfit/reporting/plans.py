"""The report of `memfit plan` and `memfit simulate`: what a plan copies and makes again, and the cost of that."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.units import format_bytes, format_share, format_us


@dataclass(frozen=True, slots=True)
class StallInfo:
    """An op that waits, perhaps as it runs again, and the copy that it waits for: its storage, bytes and way."""

    op: int
    name: str
    runs_again: bool
    duration_us: float
    direction: str
    storage: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan and its timeline in numbers; `unswapped_bytes` is the peak without the plan.

    `footprint_bytes` is 0 for a plan without addresses. `bytes_recomputed` are those of all absences without a copy,
    which `recomputes` counts; `reruns` of ops, in `again_us`, end them, but for `bytes_for_good`, which nothing uses
    again. So many ops have `maps`, in `mapped_us`.
    `compute_us` is without these. No plan of this kind adds less than `bound_us`; None where that is not known.
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
    recomputes: int
    bytes_recomputed: int
    bytes_for_good: int
    reruns: int
    maps: int
    compute_us: float
    again_us: float
    mapped_us: float
    stall_us: float
    iteration_us: float
    overhead: float
    bound_us: float | None
    largest_stalls: tuple[StallInfo, ...]


def to_text(figures: PlanReport) -> str:
    """Return `figures` for a person."""
    saved = 1 - figures.peak_bytes / figures.unswapped_bytes if figures.unswapped_bytes else 0.0
    lines = [
        f"{figures.policy} on {figures.machine}: {figures.swaps} swaps, {figures.recomputes} recomputes",
        f"  memory     {format_bytes(figures.peak_bytes)} of {format_bytes(figures.unswapped_bytes)} "
        f"({format_share(-saved)}), budget {format_bytes(figures.budget_bytes)}",
        f"  time       {format_us(figures.iteration_us)} an iteration, {format_share(figures.overhead)} on "
        f"{format_us(figures.compute_us)} of computation",
        f"  added      {format_us(figures.again_us)} of ops that run again, {format_us(figures.stall_us)} of waits",
        *_bound(figures),
        f"  copies     {format_bytes(figures.bytes_out)} out, {format_bytes(figures.bytes_in)} in, "
        f"{format_bytes(figures.host_bytes)} away at most",
    ]
    if figures.recomputes:
        again = f"by {figures.reruns} runs of ops"
        gone = f", {format_bytes(figures.bytes_for_good)} dropped for good" if figures.bytes_for_good else ""
        lines.append(f"  recomputed {format_bytes(figures.bytes_recomputed)}, {again}{gone}")
    if figures.maps:
        lines.append(f"  mapped     in {figures.maps} ops, which take {format_us(figures.mapped_us)} longer for it")
    if figures.footprint_bytes:
        lines.append(f"  addresses  {format_bytes(figures.footprint_bytes)}")
    lines += [_stall(stall) for stall in figures.largest_stalls]
    return "\n".join(lines)


def _bound(figures: PlanReport) -> list[str]:
    if figures.bound_us is None or not figures.compute_us:
        return []
    bound = figures.bound_us / figures.compute_us
    more = max(figures.overhead - bound, 0.0)  # they may be equal, and the bound is exact to some digits only
    return [f"  bound      {format_share(bound)}: no such plan adds less; this one adds {100 * more:.2f} points more"]


def _stall(stall: StallInfo) -> str:
    op = f"op {stall.op} {stall.name}{' (again)' if stall.runs_again else ''}"
    storage = f"storage {stall.storage} ({format_bytes(stall.size_bytes)})"
    return f"  {op} waits {format_us(stall.duration_us)} for {storage} to come {stall.direction}"

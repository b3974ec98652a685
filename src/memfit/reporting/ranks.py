"""The report of `memfit simulate --ranks`: how long an iteration takes for many ranks, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.units import format_share, format_us


@dataclass(frozen=True, slots=True)
class RanksFigures:
    """An iteration of many ranks. `stall_us`, waited for copies, and `skew_us`, for others, are a rank's in the mean.

    `compute_us` and `alone_us` are those of one rank with a tier of its own, without and with the plan. Without
    `collectives` in the trace, ranks meet at the iteration's end.
    """

    ranks: int
    per_node: int
    spread: float
    network_bytes_per_s: float
    collectives: int
    compute_us: float
    alone_us: float
    iteration_us: float
    stall_us: float
    skew_us: float


def ranks_to_text(figures: RanksFigures) -> str:
    """Return `figures` for a person."""
    shared = f", {figures.per_node} to a tier" if figures.per_node > 1 else ", each with a tier of its own"
    meet = f"at {figures.collectives} collectives" if figures.collectives else "at the iteration's end"
    added = figures.iteration_us / figures.compute_us - 1 if figures.compute_us else 0.0
    return "\n".join((
        f"{figures.ranks} ranks{shared}, which meet {meet}; times spread by {100 * figures.spread:.1f} %",
        f"an iteration takes {format_us(figures.iteration_us)} ({format_share(added)} over its computation), "
        f"{format_us(figures.alone_us)} for one rank alone",
        f"a rank waits {format_us(figures.stall_us)} for copies and {format_us(figures.skew_us)} for other ranks",
    ))  # fmt: skip

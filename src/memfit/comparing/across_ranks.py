"""What a plan does to many ranks, in numbers."""

from __future__ import annotations

from memfit.errors import UsageError
from memfit.machine import Machine
from memfit.planning.across_ranks import MOST_RANKS, Ranks, collectives, run_together
from memfit.planning.joint.judged import Judged
from memfit.reporting.ranks import RanksFigures


def figures_of_ranks(found: Judged, machine: Machine, ranks: Ranks) -> RanksFigures:
    """Simulate the plan `found` on `ranks`. Raises UsageError if there are too many, or a figure is out of range."""
    if not 1 <= ranks.count <= MOST_RANKS or ranks.per_node < 1:
        why = f"a run has 1 to {MOST_RANKS}, and a node at least one"
        raise UsageError(
            f"{ranks.count} ranks, {ranks.per_node} to a node, cannot be simulated", why=why, remedy="--ranks 64"
        )
    if not 0 <= ranks.spread < 1 or ranks.network_bytes_per_s < 0:
        why = "times spread by 0 % or more and less than 100 %, and a network has 0 GB/s or more"
        raise UsageError("such ranks cannot be simulated", why=why, remedy="--spread 5 --network 25")
    trace = found.made.trace
    together = run_together(trace, machine, found.swaps.swaps, ranks)
    return RanksFigures(
        ranks=ranks.count,
        per_node=min(ranks.per_node, ranks.count),
        spread=ranks.spread,
        network_bytes_per_s=ranks.network_bytes_per_s,
        collectives=len(collectives(trace)),
        compute_us=found.compute_us,
        alone_us=found.timeline.iteration_us,
        iteration_us=together.iteration_us,
        stall_us=together.stall_us,
        skew_us=together.skew_us,
    )

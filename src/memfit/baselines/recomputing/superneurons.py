"""SuperNeurons (Wang et al., PPoPP 2018): what lies between checkpoints is made again, checkpoints are offloaded.

Checkpoints are the outputs of dear layers: of convolutions and, for networks without them, of products of matrices and
attention (section 3.4). *Speed centric* makes a segment between two checkpoints again once and keeps it; *memory
centric* makes each storage of it anew for each use; *cost aware* is speed centric in segments no larger than the
largest working set of an op, and memory centric in the others. It recomputes at any budget, as published. Checkpoints
go through the cache of section 3.3.2 (`policies.superneurons`). Its choice of convolution algorithms by the free memory
cannot be expressed on a trace.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from memfit.baselines.policies.policy import Policy, all_gaps
from memfit.baselines.policies.superneurons import cached
from memfit.baselines.recomputing.drops import Droppable, Droppables, Drops, is_dear, turn_of
from memfit.baselines.recomputing.policy import mixed
from memfit.ir import Plan, Swap, Trace, align_up
from memfit.machine import Machine
from memfit.planning.lifetimes import working_sets


def superneurons(kind: str, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan of one kind, "speed", "memory" or "cost"; raises BudgetError if it does not fit."""
    drops = Droppables(trace)
    chosen = [each for each in drops.waiting if not drops.is_checkpoint(each)]
    passing = {"speed": [], "memory": chosen, "cost": _large_segments(drops, chosen)}[kind]
    found = drops.carried_out(chosen, passing)
    swaps = _offloaded(found, budget_bytes) if found.peak_bytes > budget_bytes else []
    return mixed(f"superneurons-{kind}", trace, machine, budget_bytes, found.recomputes, found.made, swaps)


def _large_segments(drops: Droppables, chosen: list[Droppable]) -> list[Droppable]:
    """Return the storages of segments that hold more than the largest working set of an op, `l_peak`."""
    checkpoints = 0
    segment_of: list[int] = []
    for op in drops.trace.ops:
        checkpoints += is_dear(op.name)
        segment_of.append(checkpoints)
    segments: dict[int, list[Droppable]] = defaultdict(list)
    for each in chosen:
        segments[segment_of[each.writer]].append(each)
    l_peak, alignment = int(working_sets(drops.trace, aligned=True).max()), drops.trace.alignment
    large = (own for own in segments.values() if sum(align_up(e.gap.size_bytes, alignment) for e in own) > l_peak)
    return [each for own in large for each in own]


def _offloaded(found: Drops, budget_bytes: int) -> list[Swap]:
    """Return the swaps of checkpoints that the cache makes on the trace with remakings."""
    trace, again = found.made.trace, found.made.runs_again
    dear = [index for index, op in enumerate(trace.ops) if is_dear(op.name) and not again[index]]
    outputs = {s for index in dear for s in trace.ops[index].writes if trace.storages[s].alloc == index}
    turn = turn_of(trace)
    gaps = [gap for gap in all_gaps(trace) if gap.is_inner and gap.after < turn <= gap.before]
    return cached(trace, [gap for gap in gaps if gap.storage in outputs], dear, budget_bytes)


SUPERNEURONS: dict[str, Policy] = {
    f"superneurons-{kind}": partial(superneurons, kind) for kind in ("speed", "memory", "cost")
}
"""One policy for each kind, by its name."""

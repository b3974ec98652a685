"""SuperNeurons (PPoPP 2018): a cache of convolution outputs that evicts the least recently used when memory runs out.

Evictions are waited for; an evicted output is fetched back when the backward part of the convolution after it begins.
What has no later use is freed by liveness in every policy here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from memfit.baselines.policies.policy import from_forward_to_backward, is_convolution, plan_of_swaps
from memfit.baselines.policies.reactive import Reactive
from memfit.ir import Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.lifetimes import Gap


def superneurons_cache(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan of the cache; raises BudgetError if evicting convolution outputs is not enough."""
    outputs = _convolution_outputs(trace)
    gaps = [gap for gap in from_forward_to_backward(trace) if gap.storage in outputs]
    convolutions = [index for index, op in enumerate(trace.ops) if is_convolution(op.name)]
    return plan_of_swaps("superneurons", trace, machine, budget_bytes, cached(trace, gaps, convolutions, budget_bytes))


def cached(trace: Trace, gaps: Sequence[Gap], layers: Sequence[int], budget_bytes: int) -> list[Swap]:
    """Return the swaps of the cache among `gaps`; what it evicts is fetched at the last of `layers` before its use."""

    def at_previous_layer(op: int) -> int:
        within = op % len(trace.ops)
        before = bisect_left(layers, within)
        return op - within + layers[before - 1] if before else op

    return Reactive(trace, gaps, lambda _gap, last, _next: -last, at_previous_layer).swaps(budget_bytes)


def _convolution_outputs(trace: Trace) -> set[int]:
    """Return the storages that a convolution allocates and writes."""
    return {
        storage
        for index, op in enumerate(trace.ops)
        if is_convolution(op.name)
        for storage in op.writes
        if trace.storages[storage].alloc == index
    }

"""vDNN (MICRO 2016): offload the inputs of layers on the forward way, prefetch the nearest on the backward way.

A layer is an op of the forward part; its input is what it is the last there to read. The copy out overlaps the layer
itself and is joined at its end; in the backward part, when one offloaded input is needed, the next is prefetched,
looking back no further than the first convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memfit.baselines.policies.none import none
from memfit.baselines.policies.policy import from_forward_to_backward, is_convolution, plan_of_swaps
from memfit.errors import BudgetError
from memfit.ir import Phase, Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import swap_of
from memfit.planning.lifetimes import Gap

_ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "swish", "threshold", "hardtanh", "softplus")


def vdnn_all(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that offloads every layer's input but those of activations and of the last layer."""
    inputs = [gap for gap in _inputs(trace) if not _is_activation(trace.ops[gap.after].name)]
    return plan_of_swaps("vdnn-all", trace, machine, budget_bytes, _swaps(trace, inputs))


def vdnn_conv(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan that offloads the inputs of convolutions."""
    inputs = [gap for gap in _inputs(trace) if is_convolution(trace.ops[gap.after].name)]
    return plan_of_swaps("vdnn-conv", trace, machine, budget_bytes, _swaps(trace, inputs))


def vdnn_dyn(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the first of no offloading, convolutions and all that fits; raises the last one's BudgetError."""
    for policy in (none, vdnn_conv):
        try:
            return replace(policy(trace, machine, budget_bytes), policy="vdnn-dyn")
        except BudgetError:
            continue
    return replace(vdnn_all(trace, machine, budget_bytes), policy="vdnn-dyn")


def _inputs(trace: Trace) -> list[Gap]:
    """Return the gaps of layers' inputs, the last layer's left out."""
    forward = [index for index, op in enumerate(trace.ops) if op.phase is Phase.FORWARD]
    return [gap for gap in from_forward_to_backward(trace) if gap.after != forward[-1]]


def _is_activation(name: str) -> bool:
    return any(word in name.lower() for word in _ACTIVATIONS)


def _swaps(trace: Trace, inputs: Sequence[Gap]) -> list[Swap]:
    convolutions = [index for index, op in enumerate(trace.ops) if is_convolution(op.name)]
    first = convolutions[0] if convolutions else 0
    swaps: list[Swap] = []
    previous = -1  # the use at which the next one is prefetched
    for gap in sorted(inputs, key=lambda gap: (gap.before, -gap.after)):
        layer = gap.after
        # The layer only reads its input, so the copy may run beside it, unless the op writes.
        overlaps = gap.storage not in trace.ops[layer].writes and layer > trace.storages[gap.storage].alloc
        in_start = previous if previous > layer and layer >= first else gap.before
        swap = swap_of(trace, gap, layer + 1, max(in_start, layer + 1))
        swaps.append(replace(swap, out_after=layer - 1) if overlaps else swap)
        previous = gap.before
    return swaps

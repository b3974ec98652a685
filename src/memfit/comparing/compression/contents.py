"""The tensor that each storage of a trace holds, as far as the shapes of the ops' tensors tell."""

from __future__ import annotations

from collections import defaultdict

from memfit.ir import Trace
from memfit.shapes import Tensor, parse_shapes


def contents(trace: Trace) -> dict[int, Tensor]:
    """Return a tensor for each storage that an op is seen to use as a whole: the one that most ops show.

    An op tells which tensors it uses, and which storages, but not which tensor lies in which: sizes do.
    """
    votes: dict[int, dict[Tensor, float]] = defaultdict(lambda: defaultdict(float))
    for op in trace.ops:
        shapes = parse_shapes(op.tensors)
        tensors = {tensor for tensor in (*shapes.inputs, *shapes.outputs) if tensor}
        for storage in {*op.reads, *op.writes}:
            fitting = [tensor for tensor in tensors if tensor.size_bytes == trace.storages[storage].size_bytes]
            for tensor in fitting:
                votes[storage][tensor] += 1 / len(fitting)
    return {storage: max(found, key=lambda tensor: found[tensor]) for storage, found in votes.items()}

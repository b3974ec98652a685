"""Reuse in place: an op's output may take the bytes of an input that dies at that op.

Two storages that hand over like this are one lifetime to the packer. The plan then relies on the op's kernel
reading each element before it writes that element. That holds for the named operators where input and output
have the same layout, which a trace does not record (an input may be a transposed view): whoever turns this on has
to know, or to check when the op runs. So it is off unless asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.ir import Category, Op, Storage, Trace, align_up
from memfit.planning.lifetimes import births
from memfit.planning.packing.lifetimes import Lifetimes, lifetimes_of

ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        # One input.
        "abs", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "elu", "exp", "floor", "gelu", "hardswish",
        "hardtanh", "leaky_relu", "log", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu",
        "sin", "softplus", "sqrt", "tanh",
        # Two or three: add(x, y), and the gradients of the above.
        "add", "addcdiv", "addcmul", "div", "lerp", "maximum", "minimum", "mul", "pow", "sub", "where",
        "gelu_backward", "hardtanh_backward", "leaky_relu_backward", "sigmoid_backward", "silu_backward",
        "tanh_backward", "threshold_backward",
    )
)  # fmt: skip
"""Operators whose kernels compute element i of the output from element i of each input alone."""

_KEPT = frozenset({Category.PARAMETER, Category.OPTIMIZER_STATE, Category.INPUT})


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Lifetimes after grouping, and the row of each storage; storages of one row share a placement."""

    lifetimes: Lifetimes
    row: Int64Array


def group_in_place(trace: Trace, *, enabled: bool = False) -> Grouped:
    """Make one lifetime of storages that may hand over their bytes in place.

    An output takes over from an input if the op is in `ELEMENTWISE`, the input's last access is this op and it is
    freed at it, both have the same size when aligned, and the input is not a parameter, optimizer state or batch and
    was not alive before the iteration. Each storage hands over at most once.

    Arguments:
        trace: The recorded iteration.
        enabled: Whether storages hand over; otherwise every storage keeps a row of its own.

    Returns:
        The lifetimes, and the row of each storage.
    """
    heir = _takers(trace) if enabled else {}
    first = np.arange(len(trace.storages), dtype=np.int64)
    # Ascending by birth, so that a chain is followed from its start.
    for giver, taker in sorted(heir.items(), key=lambda pair: trace.storages[pair[1]].alloc_tick):
        first[taker] = first[giver]
    return _merge(lifetimes_of(trace), first)


def _merge(single: Lifetimes, first: Int64Array) -> Grouped:
    kept, row = np.unique(first, return_inverse=True)
    upper, size = single.upper[kept], single.size[kept]
    np.maximum.at(upper, row, single.upper)
    np.maximum.at(size, row, single.size)
    return Grouped(Lifetimes(single.lower[kept], upper, size), row.astype(np.int64))


def _takers(trace: Trace) -> dict[int, int]:
    """Return which storage each one hands its bytes to."""
    last_op, born_in = _last_accesses(trace), births(trace)
    heir: dict[int, int] = {}
    for index, op in enumerate(trace.ops):
        if _overload_free(op) not in ELEMENTWISE:
            continue
        takers = [s for s in dict.fromkeys(op.writes) if born_in.get(s) == index and s not in op.reads]
        if len(takers) != 1:
            continue
        for giver in dict.fromkeys(op.reads):
            if last_op.get(giver) == index and _may_hand_over(trace, index, giver, takers[0]):
                heir[giver] = takers[0]
                break
    return heir


def _may_hand_over(trace: Trace, op: int, giver: int, taker: int) -> bool:
    a, b = trace.storages[giver], trace.storages[taker]
    same = align_up(a.size_bytes, trace.alignment) == align_up(b.size_bytes, trace.alignment)
    # Freed after the output is made: before that its bytes are free anyway.
    overlaps = b.alloc_tick < a.free_tick
    return same and overlaps and a.free <= op + 1 and not _is_kept(trace, a) and giver not in trace.ops[op].writes


def _is_kept(trace: Trace, storage: Storage) -> bool:
    return storage.category in _KEPT or storage.born_before or trace.outlives(storage)


def _overload_free(op: Op) -> str:
    return op.name.split(".")[0]


def _last_accesses(trace: Trace) -> dict[int, int]:
    return {s: index for index, op in enumerate(trace.ops) for s in (*op.reads, *op.writes)}

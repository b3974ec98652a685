"""The way in which an op touches the bytes of its operands, by its name.

An op that streams touches each chunk once. An op of rows touches as many random ones as it has indices. A product
sweeps: it goes over its operands again and again, in blocks. An op that is not known here is taken to sweep as often as
a product: a mapped storage that is swept thrashes, so that a guess that is too low may cost minutes, while one that is
too high leaves the storage where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memfit.ir import Trace
from memfit.planning.lifetimes import births

_INDEX_BYTES = 8  # torch's indices are int64


class AccessClass(StrEnum):
    """The order in which an op touches the chunks of its operands."""

    STREAM = "stream"
    ROWS = "rows"
    SWEEPS = "sweeps"


@dataclass(frozen=True, slots=True)
class Touch:
    """What an op does with the bytes of one storage.

    Attributes:
        storage: The storage's id.
        is_write: Whether it writes.
        sweeps: How often it goes from the first byte to the last; None for as often as a product does.
        draws: The random rows that it touches instead; 0 for none.
        row_bytes: The length of a row.
    """

    storage: int
    is_write: bool
    sweeps: int | None = 1
    draws: int = 0
    row_bytes: int = 0


# Of rows: they have indices, and a table that they read, or add to.
_GATHERS = ("embedding", "embedding_bag", "index_select", "gather", "index", "take")
_SCATTERS = ("embedding_backward", "embedding_dense_backward", "index_add", "scatter", "scatter_add", "index_put")
# Of a known number of sweeps. A convolution of a batch read its input and its weight once where that was measured, on
# the CPU; twice is careful. Neither batch_norm, which read its input once for each channel, nor sum and its like, which
# read it 16 times when they summed over rows, are here: nobody knows how often.
_TWICE = """
    conv1d conv2d conv3d conv_transpose2d convolution _convolution convolution_backward std var
    native_group_norm_backward
"""
_SWEEPS = dict.fromkeys(_TWICE.split(), 2)
_STREAMS = """
    abs add addcdiv addcmul arange binary_cross_entropy binary_cross_entropy_with_logits bernoulli bitwise_and
    bitwise_or cat ceil clamp clamp_min clamp_max clone constant_pad_nd contiguous copy cos cross_entropy_loss div
    dropout native_dropout elu empty_like eq erf exp expm1 fill flatten floor ge gelu glu group_norm
    native_group_norm gt hardsigmoid hardswish hardtanh huber_loss instance_norm isfinite isinf isnan item
    layer_norm native_layer_norm le leaky_relu lerp log log1p log_softmax _log_softmax _log_softmax_backward_data
    logical_and logical_not logical_or lt l1_loss masked_fill maximum minimum mse_loss mul ne neg new_ones new_zeros
    nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward normal ones ones_like pad pow rand rand_like randint
    randn randn_like reciprocal relu repeat reshape rms_norm _fused_rms_norm round rsqrt rsub select_backward
    sigmoid sign silu sin slice_backward smooth_l1_loss softmax _softmax _softmax_backward_data softplus
    split_with_sizes_copy sqrt square stack sub tanh threshold to _to_copy tril triu uniform where zero zeros
    zeros_like max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d upsample_bilinear2d
    upsample_nearest2d __and__ __or__
"""
_KNOWN = {
    **dict.fromkeys(_STREAMS.split(), AccessClass.STREAM),
    **dict.fromkeys((*_GATHERS, *_SCATTERS), AccessClass.ROWS),
}


def access_class(op_name: str) -> AccessClass:
    """Find the class of an op.

    Arguments:
        op_name: The operator, as in a trace: "aten::add_.Tensor".

    Returns:
        Its class; `SWEEPS` for one that is not known.
    """
    name = _base(op_name)
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")):
        return AccessClass.STREAM
    return _KNOWN.get(name, _KNOWN.get(name.removesuffix("_backward"), AccessClass.SWEEPS))


def touches(trace: Trace, op: int, born: dict[int, int]) -> list[Touch]:
    """Find what an op does with each storage that it uses.

    Arguments:
        trace: The recorded iteration.
        op: The op's index.
        born: The op in which each storage was allocated (`planning.lifetimes.births`).

    Returns:
        One entry a storage, those that are read first; two for a table that the op makes.
    """
    its = trace.ops[op]
    used = dict.fromkeys(its.reads, False) | dict.fromkeys(its.writes, True)
    used = {storage: is_write for storage, is_write in used.items() if trace.storages[storage].size_bytes > 0}
    kind = access_class(its.name)
    if kind is AccessClass.ROWS and (found := _rows(trace, used, born, op)):
        return found
    sweeps = _SWEEPS.get(_base(its.name), 1 if kind is AccessClass.STREAM else None)
    return [Touch(storage, is_write, sweeps) for storage, is_write in used.items()]


def scratch(trace: Trace) -> dict[int, list[int]]:
    """Return, for each op, the storages that it allocates, and that no op is recorded to use."""
    named = {storage for op in trace.ops for storage in (*op.reads, *op.writes)}
    found: dict[int, list[int]] = {}
    for storage, op in births(trace).items():
        if storage not in named and trace.storages[storage].size_bytes > 0:
            found.setdefault(op, []).append(storage)
    return found


def expected_chunks(chunks: int, draws: int) -> float:
    """Return how many of `chunks` are touched, on average, by this many draws of one each."""
    return chunks * (1 - (1 - 1 / chunks) ** draws)


def _rows(trace: Trace, used: dict[int, bool], born: dict[int, int], op: int) -> list[Touch]:
    """Return the touches of an op of rows; none if its storages are not a table, indices and rows.

    The indices are the smallest storage that is read. The table is the largest that is read, or added to; the rows are
    the largest of the others, one for each index.
    """
    size = [storage.size_bytes for storage in trace.storages]
    adds = _base(trace.ops[op].name) in _SCATTERS
    indices = min((s for s, is_write in used.items() if not is_write), key=lambda s: size[s], default=None)
    tables = [s for s, is_write in used.items() if is_write == adds and s != indices]
    if indices is None or not tables or len(used) < 3:
        return []
    table = max(tables, key=lambda s: size[s])
    draws = size[indices] // _INDEX_BYTES
    row_bytes = max(size[s] for s in used if s not in (indices, table)) // max(draws, 1)
    if draws == 0 or not 0 < row_bytes <= size[table]:
        return []
    is_filled = adds and born.get(table) == op  # with zeros, before the rows are added
    streams = [Touch(s, is_write) for s, is_write in used.items() if s != table or is_filled]
    return [*streams, Touch(table, adds, 1, draws, row_bytes)]


def _base(op_name: str) -> str:
    """Return "add" for "aten::add_.Tensor"."""
    name = op_name.rpartition("::")[2].partition(".")[0]
    return name if name.startswith("__") else name.removesuffix("_")

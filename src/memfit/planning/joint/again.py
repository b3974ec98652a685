"""The ops that may run again, by their names, and what an op writes where a recording says too much.

An op may run again if it makes the same bytes from the same inputs and does nothing else: random ops may, since their
generator's state is put back. Whether its inputs are still there is a question for `recipes`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from memfit.ir import Op, Trace

_AFRESH = "aten::"


class Rule(StrEnum):
    """A reason why an op does not run again."""

    NOT_ATEN = "it is not an aten op"
    OPTIMIZER = "it is an optimizer's op"
    PYTHON = "it hands bytes to Python or changes what a storage is"
    UNSEEN = "it may read memory that no recording sees"
    UNSAID = "it does not say all that it writes"
    NO_INPUT = "it reads nothing recorded, and is not known to need nothing"


_DENIED = {
    Rule.PYTHON: {
        "set_", "set_data", "resize_", "resize_as_", "item", "_local_scalar_dense", "is_nonzero", "equal", "allclose",
        "record_stream",
    },
    Rule.UNSEEN: {"copy_", "_copy_from", "_copy_from_and_resize", "_pin_memory", "tensor", "from_file"},
    Rule.UNSAID: {
        "rrelu", "rrelu_", "rrelu_with_noise", "rrelu_with_noise_", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward",
        "lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "instance_norm",
    },
}  # fmt: skip
_RULES = {name: rule for rule, names in _DENIED.items() for name in names}
_DENIED_PREFIXES = ("_foreach_", "_fused_", "_amp_")
_FUSED = frozenset({"_fused_rms_norm", "_fused_rms_norm_backward"})
"""They have an optimizer's prefix, and are functions of their arguments."""
_FACTORIES = ("zeros", "ones", "full", "rand", "arange", "eye", "linspace", "logspace", "scalar_tensor", "tril_indices",
              "triu_indices", "new_zeros", "new_ones", "new_full", "bartlett_window", "hann_window")  # fmt: skip
"""The beginnings of the names of ops that need no input bytes; `empty` is not one, since its caller fills it."""
_NORMS = frozenset({"batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
                    "_batch_norm_impl_index", "_native_batch_norm_legit", "_batch_norm_with_update"})  # fmt: skip
_NORMS_BACKWARD = frozenset({"native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
                             "batch_norm_backward", "_batch_norm_impl_index_backward"})  # fmt: skip


def base_name(op: Op) -> str:
    """Return the name of `op` without its namespace and its overload."""
    return op.name.rpartition("::")[2].partition(".")[0]


def rule_against(op: Op) -> Rule | None:
    """Return the reason why `op` does not run again; None if it makes the same bytes from the same, and nothing else.

    What it writes besides its outputs is not looked at here.
    """
    name = base_name(op)
    if not op.name.startswith(_AFRESH):
        return Rule.NOT_ATEN
    if name in _RULES:
        return _RULES[name]
    if name.startswith(_DENIED_PREFIXES) and name not in _FUSED:
        return Rule.OPTIMIZER
    return None if op.reads or name.startswith(_FACTORIES) else Rule.NO_INPUT


def may_run_again(op: Op) -> bool:
    """Return whether `op`, run again on the same bytes, makes the same bytes and has no other effect.

    What it writes besides its outputs is not looked at here.
    """
    return rule_against(op) is None


def updates_statistics(op: Op) -> bool:
    """Return whether what `op` writes besides its outputs are statistics, which a second run leaves as they are."""
    return base_name(op) in _NORMS


def corrected(trace: Trace) -> Trace:
    """Return `trace` with batch norms that write their outputs and statistics only.

    Older recordings say that such an op writes all its arguments. What only batch norms use, and what the next
    iteration uses too, counts as statistics. A trace that is right already is returned as it is.
    """
    others = {s for op in trace.ops if base_name(op) not in _NORMS | _NORMS_BACKWARD for s in (*op.reads, *op.writes)}
    statistics = {s for s, storage in enumerate(trace.storages) if trace.recurs(storage)} - others

    def written(op: Op) -> tuple[int, ...]:
        return tuple(s for s in op.writes if s not in op.reads or s in statistics)

    ops = tuple(replace(op, writes=written(op)) if updates_statistics(op) else op for op in trace.ops)
    return trace if ops == trace.ops else replace(trace, ops=ops)

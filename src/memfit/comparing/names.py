"""Ops and storages of a trace, as reports take them."""

from __future__ import annotations

from memfit.ir import Trace
from memfit.reporting.names import OpInfo, TensorInfo


def op_info(trace: Trace, index: int) -> OpInfo:
    """Return op `index`; one beyond the end is that of the next iteration."""
    op = trace.ops[index % len(trace.ops)]
    return OpInfo(index % len(trace.ops), op.name, op.phase.value, op.source)


def tensor_info(trace: Trace, storage_id: int) -> TensorInfo:
    """Return storage `storage_id`."""
    storage = trace.storages[storage_id]
    return TensorInfo(storage_id, storage.category.value, storage.size_bytes, storage.source)

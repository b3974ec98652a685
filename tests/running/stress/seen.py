"""All that can be seen of a value, without an op on it: to be compared bit by bit between two runs."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

Reader = Callable[[torch.UntypedStorage], bytes]
Row = tuple[str, ...]

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
PLAIN = (bool, int, float, complex, str, type(None))
BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def read_plainly(storage: torch.UntypedStorage) -> bytes:
    """Return the bytes of a storage outside a session."""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def rows(value: Any, read: Reader) -> Iterator[Row]:
    """Yield one row for every tensor, number or other thing in `value`."""
    if isinstance(value, torch.Tensor):
        yield from tensor_rows(value, read)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from rows(item, read)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (repr(key),)
            yield from rows(item, read)
    else:
        yield (
            repr(value) if isinstance(value, (bool, int, float, complex, str, type(None))) else type(value).__name__,
        )


def tensor_rows(tensor: torch.Tensor, read: Reader) -> Iterator[Row]:
    """Yield what a tensor is, and the bytes of every storage it is made of."""
    flags = (tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    yield (str(tensor.dtype), str(tensor.layout), tensor.device.type, repr(flags))
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from tensor_rows(getattr(tensor, name), read)
        return
    for name, member in members(tensor):
        yield (name,)
        yield from tensor_rows(member, read)
    if tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested:
        yield strided_row(tensor, read)


def members(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a composite one consists of."""
    if tensor.is_nested:
        yield "sizes", tensor._nested_tensor_size()
        yield "strides", tensor._nested_tensor_strides()
        yield from ((f"part {index}", part) for index, part in enumerate(tensor.detach().unbind()))
    elif tensor.layout is torch.sparse_coo:
        yield f"indices {tuple(tensor.shape)} {tensor.is_coalesced()}", tensor._indices()
        yield "values", tensor._values()
    elif tensor.layout in COMPRESSED:
        tensor = tensor.detach()  # torch reads no values of a view whose base was written to, as it has no strides
        rowwise = tensor.layout in BY_ROWS
        yield f"starts {tuple(tensor.shape)}", tensor.crow_indices() if rowwise else tensor.ccol_indices()
        yield "indices", tensor.col_indices() if rowwise else tensor.row_indices()
        yield "values", tensor.values()
    elif tensor.is_mkldnn:
        yield "dense", tensor.to_dense()
    elif tensor.is_quantized and tensor.qscheme() in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        yield "scales", tensor.q_per_channel_scales()
        yield "zeros", tensor.q_per_channel_zero_points()


def strided_row(tensor: torch.Tensor, read: Reader) -> Row:
    """Return the shape and the hash of a dense tensor's elements, in order."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor():
        return ("none",)
    kind = str((tensor.q_scale(), tensor.q_zero_point())) if is_scaled(tensor) else ""
    return (str(tuple(tensor.shape)), kind, digest(elements(tensor, read)))


def is_scaled(tensor: torch.Tensor) -> bool:
    """Return whether one scale is that of the whole tensor."""
    return tensor.is_quantized and tensor.qscheme() is torch.per_tensor_affine


def elements(tensor: torch.Tensor, read: Reader) -> bytes:
    """Return the bytes of a dense tensor's elements, in order."""
    if tensor.numel() == 0:
        return b""
    size = tensor.element_size()
    whole = np.frombuffer(read(tensor.untyped_storage()), np.uint8)
    strides = [*(stride * size for stride in tensor.stride()), 1]
    return np.ndarray((*tensor.shape, size), np.uint8, whole, tensor.storage_offset() * size, strides).tobytes()


def digest(data: bytes) -> str:
    """Return a short hash of `data`."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()

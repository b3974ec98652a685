"""What can be seen of a tensor, without an op on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

Reader = Callable[[torch.UntypedStorage], bytes]


def read_plainly(storage: torch.UntypedStorage) -> bytes:
    """Return the bytes of a storage in ordinary memory."""
    ordinary = storage.cpu()
    return np.array(torch.empty(0, dtype=torch.uint8, device="cpu").set_(ordinary).numpy()).tobytes()


def contents(tensor: torch.Tensor, read: Reader) -> tuple[str, tuple[int, ...], bool, bytes]:
    """Return all that can be seen of a tensor, its elements in order, without an op on it."""
    size = tensor.element_size()
    if tensor.numel() == 0:
        elements = b""
    else:
        strides = [*(stride * size for stride in tensor.stride()), 1]
        whole = np.frombuffer(read(tensor.untyped_storage()), np.uint8)
        shape = (*tensor.shape, size)
        elements = np.ndarray(shape, np.uint8, whole, tensor.storage_offset() * size, strides).tobytes()
    return str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, elements


def is_composite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is more than elements in one storage."""
    return tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized


def is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view of several that was written to through another: torch refuses it
        return False

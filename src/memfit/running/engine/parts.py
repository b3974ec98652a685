"""The dense tensors of which a tensor of any kind consists: those have the bytes.

A wrapper subclass (a quantized state, a DTensor, a jagged tensor) has a storage without bytes, and its class says which
tensors it holds. A sparse or nested tensor, or one that a transform of functorch's wraps, holds others as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

_DEVICES = ("cpu", "cuda")
_HELD_BY = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_SCALES = {
    torch.per_channel_affine: ("q_per_channel_scales", "q_per_channel_zero_points"),
    torch.per_channel_affine_float_qparams: ("q_per_channel_scales", "q_per_channel_zero_points"),
}


@dataclass(frozen=True)
class Part:
    """A tensor that holds no others, by its name in the whole. `why` it has no bytes to be read, if that is known."""

    name: str
    tensor: Tensor
    why: str = ""


def parts_of(tensor: Tensor, name: str = "") -> Iterator[Part]:
    """Yield the dense tensors of which `tensor` consists: itself, if it is one, or if nobody can take it apart."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        yield from parts_of(torch._C._functorch.get_unwrapped(tensor), name)
    elif hasattr(type(tensor), "__tensor_flatten__"):
        inner, why = _flattened(tensor)
        if why:
            yield Part(name, tensor, why)
        yield from _parts_of_each(inner, name)
    else:
        with torch._C.DisableTorchFunctionSubclass():  # a subclass may answer for its attributes by code of its own
            why = _why_none(tensor)
            held = None if why else _held(tensor)
        if held is None:
            yield Part(name, tensor, why)
        yield from _parts_of_each(held or (), name)


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors alone, those without bytes included."""
    return [part.tensor for part in parts_of(tensor)]


def _parts_of_each(held: Iterable[tuple[str, Tensor]], whole: str) -> Iterator[Part]:
    for inner, tensor in held:
        yield from parts_of(tensor, f"{inner} of {whole}" if whole else inner)


def _flattened(tensor: Any) -> tuple[list[tuple[str, Tensor]], str]:
    """Return what a wrapper holds, as its class says, and "", or nothing and why the class failed to say it."""
    try:
        if hasattr(tensor, "trigger_wait"):  # a collective may still be writing to it
            tensor.trigger_wait()
        held = [(name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    except Exception as error:
        return [], f"its __tensor_flatten__ failed: {type(error).__name__}"
    return [(name, inner) for name, inner in held if isinstance(inner, Tensor)], ""


def _held(tensor: Tensor) -> list[tuple[str, Tensor]] | None:
    """Return what a tensor of torch's own kinds holds; None if that is one dense tensor, itself."""
    if tensor.is_nested:
        return [(f"component {at}", part) for at, part in enumerate(tensor.detach().unbind())]
    if tensor.layout in _HELD_BY:
        return [(name.lstrip("_"), getattr(tensor.detach(), name)()) for name in _HELD_BY[tensor.layout]]
    return None


def scales_of(tensor: Tensor) -> list[tuple[str, Any]]:
    """Return what a dense tensor's elements are multiples of, and from where, if it is quantized."""
    if not tensor.is_quantized:
        return []
    names = _SCALES.get(tensor.qscheme(), ("q_scale", "q_zero_point"))
    values = [(name, getattr(tensor, name)()) for name in names]
    return [(name, value.tolist() if isinstance(value, Tensor) else value) for name, value in values]


def _why_none(tensor: Tensor) -> str:
    """Return why there are no dense tensors in `tensor`; "" if there are."""
    if is_lazy(tensor):
        return "it has no shape yet"
    if torch._is_functional_tensor(tensor):
        return "it is a tensor of a program that is being compiled"
    if tensor.device.type == "meta" or torch._C._has_storage(tensor) and tensor.untyped_storage().device.type == "meta":
        return "it has no values"
    if tensor.device.type not in _DEVICES:
        return f"it is on device {tensor.device.type}"
    is_known = tensor.layout is torch.strided or tensor.layout in _HELD_BY
    return "" if is_known or tensor.is_nested else f"its layout is {tensor.layout}"

"""Samples of quantized tensors and modules: torch has none of its own for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from running.stress.samples import Group, Sample

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "clone": torch.clone,
    "dequantize": torch.dequantize,
    "relu": torch.relu,
    "integers": lambda q: q.int_repr(),
    "sizes": lambda q: (q.qscheme(), str(q.dtype), tuple(q.shape)),
    "reshape": lambda q: q.reshape(-1),
    "transpose": lambda q: q.transpose(0, 1),
    "contiguous": lambda q: q.transpose(0, 1).contiguous(),
    "slice": lambda q: q[1:],
    "copy": lambda q: torch.empty_like(q).copy_(q),
    "max": torch.max,
    "sort": lambda q: torch.sort(q)[0],
    "add": lambda q: torch.ops.quantized.add(q, q, 0.5, 3),
    "multiply": lambda q: torch.ops.quantized.mul(q, q, 0.5, 3),
    "cat": lambda q: torch.ops.quantized.cat([q, q], 0, 0.5, 3),
    "equal": lambda q: torch.equal(q, q.clone()),
    "linear": lambda q: linear(q),
    "dynamic linear": lambda q: torch.ao.nn.quantized.dynamic.Linear(q.shape[-1], 3)(q.dequantize()),
    "dynamic LSTM": lambda q: torch.ao.nn.quantized.dynamic.LSTM(q.shape[-1], 3)(q.dequantize().reshape(2, 2, -1))[0],
    "embedding": lambda q: torch.ao.nn.quantized.Embedding(8, 4)(torch.tensor([1, 2, 5])),
    "fake": lambda q: torch.fake_quantize_per_tensor_affine(q.dequantize(), 0.1, 0, -128, 127),
    "in place": lambda q: q.clone().fill_(1.0),
    "pickled": lambda q: torch.ops.aten.dequantize(q.clone().detach()),
}
KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "tensor": lambda: torch.quantize_per_tensor(torch.randn(4, 6), 0.1, 10, torch.quint8),
    "signed": lambda: torch.quantize_per_tensor(torch.randn(4, 6), 0.05, 0, torch.qint8),
    "channel": lambda: by_channel(0),
    "other channel": lambda: by_channel(1),
    "32 bits": lambda: torch.quantize_per_tensor(torch.randn(4, 6), 0.001, 0, torch.qint32),
}


def by_channel(axis: int) -> torch.Tensor:
    """Return a tensor with a scale for every row or column."""
    values = torch.randn(4, 6)
    scales = torch.rand(values.shape[axis]) + 0.1
    return torch.quantize_per_channel(values, scales, torch.arange(values.shape[axis]), axis, torch.qint8)


def linear(q: torch.Tensor) -> torch.Tensor:
    """Return the result of a quantized layer with a weight of one scale a row."""
    layer = torch.ao.nn.quantized.Linear(6, 3)
    scales, zeros = torch.rand(3) + 0.1, torch.zeros(3, dtype=torch.int64)
    layer.set_weight_bias(torch.quantize_per_channel(torch.randn(3, 6), scales, zeros, 0, torch.qint8), torch.randn(3))
    torch.ones(64) * 2
    return layer(q)


def groups() -> Iterator[Group]:
    """Yield a group for every function."""
    for name in FUNCTIONS:
        yield Group(f"quantized {name}", partial(samples, FUNCTIONS[name]))


def samples(function: Callable[..., Any]) -> Iterator[Sample]:
    """Yield a sample for every kind of quantized tensor."""
    for make in KINDS.values():
        q = make()
        yield Sample({"forward": partial(function, q), "inputs": partial(tuple, (q,))})

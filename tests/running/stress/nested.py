"""Samples of strided nested tensors: torch has none of its own for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from running.stress.operators import differentiable, direction
from running.stress.samples import Group, Sample

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "clone": torch.clone,
    "relu": torch.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "neg": torch.neg,
    "abs": torch.abs,
    "scaled": lambda x: x * 2.5,
    "add": lambda x: x + x,
    "multiply": lambda x: x * x,
    "softmax": lambda x: torch.softmax(x, -1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5),
    "unbound": lambda x: [part * 2 for part in x.unbind()],
    "transposed": lambda x: x.transpose(1, 2),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "linear": lambda x: F.linear(x, torch.ones(3, x.size(-1)), torch.ones(3)),
    "layer norm": lambda x: F.layer_norm(x, (x.size(-1),)),
    "matmul": lambda x: torch.matmul(x, x.transpose(-1, -2)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "reshape": lambda x: x.reshape(x.size(0), -1, x.size(-1)),
    "sum": lambda x: torch.sum(x, -1, keepdim=True),
    "select": lambda x: x[0],
    "chunk": lambda x: x.chunk(2, -1),
    "masked": lambda x: x.masked_fill(x > 0, 1.0),
    "half": lambda x: x.to(torch.bfloat16),
    "to jagged": lambda x: torch.nested.nested_tensor(list(x.unbind()), layout=torch.jagged),
    "in place": lambda x: x.detach().clone().mul_(3).add_(x.detach()).relu_(),
    "fill": lambda x: x.detach().clone().fill_(2.0),
    "zeros": lambda x: torch.zeros_like(x),
    "copy": lambda x: torch.zeros_like(x).copy_(x),
    "equal": lambda x: torch.equal(x, x.clone()),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3),
    "sizes": lambda x: [x.size(0), x.size(-1), x.numel(), x.dim(), x.is_contiguous()],
    "encoder": lambda x: torch.nn.TransformerEncoderLayer(x.size(-1), 1, 8, batch_first=True).eval()(x),
}
LENGTHS = ((3, 1, 4), (2, 2), (5,), (1, 6, 2, 3))


def groups() -> Iterator[Group]:
    """Yield a group for every function."""
    for name in FUNCTIONS:
        yield Group(f"nested {name}", partial(samples, FUNCTIONS[name]))


def samples(function: Callable[..., Any]) -> Iterator[Sample]:
    """Yield a sample for every list of lengths."""
    for lengths in LENGTHS:
        parts = [torch.randn(length, 4).requires_grad_() for length in lengths]
        yield Use(function, parts).sample()


class Use:
    """A function of one nested tensor, made of leaves."""

    def __init__(self, function: Callable[..., Any], parts: list[torch.Tensor]) -> None:
        self.function, self.parts, self.out = function, parts, None
        self.nested = torch.nested.as_nested_tensor(parts)

    def sample(self) -> Sample:
        """Return the parts."""
        return Sample({"forward": self.forward, "backward": self.backward, "inputs": lambda: (self.nested, self.parts)})

    def forward(self) -> Any:
        """Run the function."""
        self.out = self.function(self.nested)
        return self.out

    def backward(self) -> Any:
        """Differentiate it."""
        outputs = differentiable(self.out)
        if not outputs:
            return ()
        given = [direction(out) for out in outputs]
        return torch.autograd.grad(outputs, self.parts, given, allow_unused=True)

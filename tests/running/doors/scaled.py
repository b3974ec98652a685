"""A training whose ops are between kernels that Python launches, in both passes, as Liger's and unsloth's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from running.plainly import descend

Halve = Callable[[Tensor], Tensor]
"""Launches a kernel that halves a tensor into another one."""


def trained(halve: Halve, width: int, batch: int, steps: int) -> list[Tensor]:
    """Train layers of one width, each with a halving behind it; return the losses and the parameters."""

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return halve(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return halve(gradient.contiguous())

    torch.manual_seed(0)
    net = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss() -> Tensor:
        x = torch.randn(batch, width)
        for layer in net:
            x = Halved.apply(layer(x).tanh())
        return x.square().mean()

    seen = [step.detach().clone() for step in descend(optimizer, loss, steps)]
    return [*seen, *(parameter.detach().clone() for parameter in net.parameters())]

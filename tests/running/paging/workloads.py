"""Ops whose working set is large, each with the bytes that have to come in and to go out if it is mapped wholly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

N = 1 << 21
"""Elements of a large operand: 8 MiB of float32."""
LARGE = 4 * N


@dataclass(frozen=True)
class Work:
    """`make` returns what is there before; `run` gives the results, of which every bit is compared."""

    name: str
    make: Callable[[], tuple[Tensor, ...]]
    run: Callable[..., tuple[Tensor, ...]]
    streams: bool = True


def _ramp(count: int = N) -> Tensor:
    return (torch.arange(count, dtype=torch.float32) % 1009) / 1009


def _rows() -> Tensor:
    return _ramp().view(256, -1)


def _adam(param: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, ...]:
    step = torch.tensor(3.0)
    torch._fused_adam_([param], [grad], [mean], [square], [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
                       eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip
    return param, mean, square


def _in_place(tensor: Tensor) -> tuple[Tensor, ...]:
    return (tensor.mul_(1.25),)


def _backward(rows: Tensor) -> tuple[Tensor, ...]:
    rows = rows.requires_grad_()
    loss = F.cross_entropy(rows, torch.arange(256) % rows.shape[1])
    loss.backward()
    return loss.detach(), rows.grad


STREAMS = (
    Work("add", lambda: (_ramp(), _ramp().flip(0)), lambda a, b: (a + b,)),
    Work("mul_", lambda: (_ramp(),), _in_place),
    Work("gelu", lambda: (_ramp(),), lambda a: (F.gelu(a),)),
    Work("cat", lambda: (_ramp(), _ramp()), lambda a, b: (torch.cat([a, b]),)),
    Work("adam", lambda: tuple(_ramp() for _ in range(4)), _adam),
    Work("softmax", lambda: (_rows(),), lambda rows: (torch.softmax(rows, 1),)),
)
OTHERS = (
    Work("cross_entropy", lambda: (_rows(),), _backward, streams=False),
    Work("layer_norm", lambda: (_rows(),), lambda rows: (F.layer_norm(rows, rows.shape[1:]),), streams=False),
    Work("linear", lambda: (_rows(), _ramp().view(256, -1)), lambda x, w: (F.linear(x, w),), streams=False),
    Work("conv", lambda: (_ramp().view(8, 4, 256, 256), _ramp(4 * 4 * 9).view(4, 4, 3, 3)),
         lambda x, w: (F.conv2d(x, w, padding=1),), streams=False),
    Work("embedding", lambda: (_ramp().view(-1, 64), torch.arange(0, N // 64, 37)),
         lambda table, rows: (F.embedding(rows, table),), streams=False),
    Work("sort", lambda: (_ramp(),), lambda a: tuple(torch.sort(a, stable=True)), streams=False),
    Work("cumsum", lambda: (_ramp(),), lambda a: (torch.cumsum(a, 0),), streams=False),
    Work("bool", lambda: (_ramp(),), lambda a: ((a > 0.5),), streams=False),
)  # fmt: skip
BLOCKS = (
    Work("sums of columns", lambda: (_ramp(320 * 6400).view(320, -1),), lambda rows: (rows.sum(0),), streams=False),
    Work("product of columns", lambda: (_rows(), _ramp(256 * 32).view(256, 32)), lambda x, y: (x.t() @ y,),
         streams=False),
    Work("product of few columns", lambda: (_ramp(256 * 32).view(256, 32), _ramp(8192 * 32).view(8192, 32)),
         lambda x, w: (F.linear(x, w),), streams=False),
    Work("conv of planes", lambda: (_ramp(N // 2).view(8, 32, 64, 64), _ramp(16 * 32 * 9).view(16, 32, 3, 3)),
         lambda x, w: (F.conv2d(x, w, padding=1),), streams=False),
    Work("conv of few planes", lambda: (_ramp(N // 4).view(8, 16, 64, 64), _ramp(16 * 16 * 9).view(16, 16, 3, 3)),
         lambda x, w: (F.conv2d(x, w, padding=1),), streams=False),
)  # fmt: skip
"""They go through their operands in blocks, each here and there, and over a block again and again."""

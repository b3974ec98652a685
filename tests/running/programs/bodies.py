"""What a layer of a random training computes: cheap ops on large tensors, which plans rather run again than copy.

Each takes a layer, with its parameters, and activations of batch, words and width, and returns others of their shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """One of the bodies, with those of the parameters and buffers that it names: others would lie about unused."""

    def __init__(self, body: str, width: int) -> None:
        super().__init__()
        self.body = BODIES[body]
        self.generator = torch.Generator().manual_seed(7)
        for name in _MEMBERS.keys() & set(self.body.__code__.co_names):  # type: ignore[attr-defined]
            setattr(self, name, _MEMBERS[name](width))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


_MEMBERS: dict[str, Callable[[int], nn.Module | Tensor]] = {
    "linear": lambda width: nn.Linear(width, width),
    "scale": lambda width: nn.Parameter(torch.linspace(0.5, 1.5, width)),
    "batch_norm": lambda width: nn.BatchNorm1d(width),
    "conv": lambda width: nn.Conv1d(width, width, 3, padding=1),
    "running": lambda width: nn.Buffer(torch.zeros(width)),
}


class Doubled(torch.autograd.Function):
    """Doubles its input in place."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Swish(torch.autograd.Function):
    """Saves its input, a view of that and its result."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[0][..., :1], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, first, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * (gate + y * (1 - gate)) + first * 0.001


class Kept(torch.autograd.Function):
    """Keeps what it needs on its context, which no hook sees, and marks outputs that have no gradient."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slope = torch.where(x > 0, 1.0, 0.1).to(x.dtype)
        return x * slope, slope, x.argsort(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.slope = output[1]
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Tensor:
        return gradient * ctx.slope


def attention(layer: Layer, x: Tensor) -> Tensor:
    weights = F.dropout(torch.softmax(layer.linear(x) @ x.transpose(1, 2) / 4, -1), 0.1)
    return weights @ x


def normed(layer: Layer, x: Tensor) -> Tensor:
    return layer.batch_norm(x.transpose(1, 2)).transpose(1, 2).contiguous()


def halves_in_place(layer: Layer, x: Tensor) -> Tensor:
    y = (x * layer.scale).contiguous()
    y[..., ::2].mul_(1.5)
    y.view(-1)[1::2].add_(0.25)
    y.narrow(1, 0, 1).add_(y.detach().mean() * 0.1)
    return y


def running_mean(layer: Layer, x: Tensor) -> Tensor:
    with torch.no_grad():
        layer.running.lerp_(x.float().mean((0, 1)), 0.1)
    return torch.tanh(x - layer.running)


def into_another(layer: Layer, x: Tensor) -> Tensor:
    noise = torch.empty_like(x, requires_grad=False)
    torch.mul(x.detach(), 0.1, out=noise)
    torch.tanh(noise, out=noise)
    return F.gelu(x) * (noise + 1)


def by_lists(layer: Layer, x: Tensor) -> Tensor:
    parts = list(torch.tanh(x).unbind(1))
    larger = torch._foreach_mul(parts, 1.25)
    torch._foreach_add_(larger, 0.1)
    return torch.stack(larger, 1)


def integers(layer: Layer, x: Tensor) -> Tensor:
    """Divide whole numbers: the type of the result is the default one."""
    ranks = x.detach().argsort(-1)
    return (x * torch.sin(ranks / 7) + x * torch.sin(ranks)).to(x.dtype) * torch.full((x.shape[-1],), 0.5).to(x.dtype)


def bits(layer: Layer, x: Tensor) -> Tensor:
    """Look at the bytes of floats as whole numbers."""
    low = x.detach().contiguous().view(torch.uint8)[..., ::4]
    return torch.relu(x) * ((low % 5).to(x.dtype)[..., : x.shape[-1]] * 0.1 + 0.5)


def tiny(layer: Layer, x: Tensor) -> Tensor:
    """Go through numbers so small that a processor may take them for zero."""
    small = torch.tanh(x.detach()) * 1e-39
    return x * 0.9 + (x * 1e38) * small


def drawn_elsewhere(layer: Layer, x: Tensor) -> Tensor:
    noise = torch.rand(x.shape, generator=layer.generator, dtype=x.dtype)
    return x * (noise > 0.2).to(x.dtype)


def complex_rotation(layer: Layer, x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real((pairs * (0.8 + 0.6j)).conj().resolve_conj()).reshape(x.shape).to(x.dtype)


def strided(layer: Layer, x: Tensor) -> Tensor:
    y = torch.exp(x.clamp(-3, 1)).contiguous()
    shifted = y.as_strided(y.shape, y.stride()).roll(1, 0)
    return (y - shifted).mul_(0.5)


def overwritten(layer: Layer, x: Tensor) -> Tensor:
    """Write to what has been read, through another view, when nothing will be asked of it any more."""
    y = torch.sin(x)
    z = y + 1
    y.detach().zero_()
    return z + y


def looped(layer: Layer, x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape)
    for word in range(x.shape[1]):
        y[:, word] = torch.sigmoid(x[:, word]) + y[:, word - 1]
    return y * 0.3


Body = Callable[[Layer, Tensor], Tensor]
BODIES: dict[str, Body] = {
    "gelu": lambda layer, x: F.gelu(layer.linear(x)),
    "gelu by tanh": lambda layer, x: F.gelu(x * layer.scale, approximate="tanh"),
    "silu gate": lambda layer, x: F.silu(x) * torch.sigmoid(layer.linear(x)),
    "softmax": lambda layer, x: torch.softmax(x * layer.scale, -1) * 3,
    "log softmax": lambda layer, x: F.log_softmax(x, 1) * 0.2 + layer.scale,
    "layer norm": lambda layer, x: F.layer_norm(x, x.shape[-1:], layer.scale.to(x.dtype)),
    "group norm": lambda layer, x: F.group_norm(x.transpose(1, 2), 2).transpose(1, 2),
    "rms norm": lambda layer, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * layer.scale,
    "dropout": lambda layer, x: F.dropout(x * layer.scale, 0.2),
    "dropout in place": lambda layer, x: F.dropout(x * 1.1, 0.2, inplace=True),
    "alpha dropout": lambda layer, x: F.alpha_dropout(torch.tanh(x), 0.1, training=True),
    "noise": lambda layer, x: x + torch.randn_like(x) * 0.01,
    "bernoulli": lambda layer, x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "generator": drawn_elsewhere,
    "relu in place": lambda layer, x: F.relu(layer.linear(x), inplace=True),
    "chain in place": lambda layer, x: x.clone().mul_(1.5).add_(0.1).tanh_(),
    "chain": lambda layer, x: (x.clamp(-2, 2).exp() + 1).log().sub_(0.5),
    "leaky": lambda layer, x: F.leaky_relu(x - 0.1, 0.1) * layer.scale,
    "where": lambda layer, x: torch.where(x > 0, layer.linear(x), x * 0.1),
    "masked": lambda layer, x: (x * 1.5).masked_fill_(x > 1, 1.0),
    "cumulated": lambda layer, x: torch.cumsum(x, 1) * 0.3,
    "sorted": lambda layer, x: torch.sort(x, -1).values * layer.scale,
    "gathered": lambda layer, x: torch.gather(torch.tanh(x), -1, x.detach().argsort(-1)),
    "scattered": lambda layer, x: torch.zeros_like(x).index_add(1, torch.arange(x.shape[1]).flip(0), torch.sin(x)),
    "rolled halves": lambda layer, x: torch.cat([x[..., ::2] * 2, torch.tanh(x[..., 1::2])], -1),
    "padded pool": lambda layer, x: F.avg_pool1d(F.pad(x, (1, 1)), 3, stride=1) * layer.scale,
    "product": lambda layer, x: torch.einsum("bwi,ji->bwj", torch.tanh(x), layer.linear.weight),
    "fourier": lambda layer, x: torch.fft.irfft(torch.fft.rfft(x.float()), n=x.shape[-1]).to(x.dtype) * 0.9,
    "wide": lambda layer, x: (x.double() * layer.scale.double()).tanh().to(x.dtype),
    "half": lambda layer, x: F.gelu(x.bfloat16()).to(x.dtype) * layer.scale,
    "convolved": lambda layer, x: F.relu(layer.conv(x.transpose(1, 2))).transpose(1, 2).contiguous(),
    "convolved in place": lambda layer, x: layer.conv(x.transpose(1, 2)).add_(x.transpose(1, 2)).relu_().mT.clone(),
    "one call attention": lambda layer, x: F.scaled_dot_product_attention(layer.linear(x), x, x, dropout_p=0.1),
    "doubled in place": lambda layer, x: Doubled.apply(x * 1.0) * layer.scale,
    "function": lambda layer, x: Swish.apply(x * layer.scale),
    "function with a context": lambda layer, x: Kept.apply(torch.sin(x) + x)[0],
    "attention": attention, "batch norm": normed, "halves in place": halves_in_place, "running mean": running_mean,
    "out": into_another, "lists": by_lists, "integers": integers, "bytes": bits, "tiny": tiny,
    "complex": complex_rotation, "strided": strided, "overwritten": overwritten, "looped": looped,
}  # fmt: skip

"""Small networks of several kinds and their batches, whose training a plan can make again in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Work:
    """A network, and its inputs and targets for a batch of some size."""

    network: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int

    def loss(self, net: nn.Module, size: int | None = None) -> Tensor:
        """Return the loss of one batch."""
        size = size or self.batch
        return F.cross_entropy(net(self.inputs(size)), torch.randint(CLASSES, (size,)))


class Convolution(nn.Sequential):
    """A convolution whose norm has statistics, an activation in place and a dropout."""

    def __init__(self, inputs: int, outputs: int) -> None:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), nn.Dropout(0.2))


class Attention(nn.Module):
    """A layer of a transformer, its attention written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.mixed(self.norms[0](x)).chunk(3, -1)
        weights = torch.softmax(queries @ keys.transpose(1, 2) / 8, -1)
        x = x + self.out(F.dropout(weights, 0.1, self.training) @ values)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norms[1](x)))), 0.1, self.training)


class Masked(nn.Module):
    """Attention under a mask by one call, which makes numbers into tensors on its way."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(words, words, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (part.unsqueeze(1) for part in self.mixed(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(queries, keys, values, self.mask, dropout_p=0.1)
        return x + F.gelu(self.out(mixed.squeeze(1)))


class Foreign(nn.Module):
    """An activation that reads bytes which are not the session's: no recipe is kept of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = np.linspace(0.5, 1.5, 64, dtype=np.float32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * torch.from_numpy(self.scales))


class Residual(nn.Module):
    """A block that adds its input in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y += x
        return y.relu_()


class Cell(nn.Module):
    """An LSTM over time, its cell written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.gates = nn.Linear(2 * width, 4 * width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.embedding(tokens)
        hidden, cell = torch.zeros_like(words[:, 0]), torch.zeros_like(words[:, 0])
        for time in range(tokens.shape[1]):
            i, f, g, o = self.gates(torch.cat([words[:, time], hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


class Pooled(nn.Module):
    """The mean over all but the batch and the given dimension."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


def _images(size: int) -> Tensor:
    return torch.randn(size, 3, 16, 16)


def _words(size: int) -> Tensor:
    return torch.randint(50, (size, 12))


def _convolutional() -> nn.Module:
    blocks = [Convolution(inputs, 16) for inputs in (3, 16, 16, 16, 16)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, CLASSES))


def attentive(layers: int) -> Work:
    """Return a network of attention, whose backward pass keeps the Python number by which the scores are divided."""

    def network() -> nn.Module:
        blocks = (Attention(32) for _ in range(layers))
        return nn.Sequential(nn.Embedding(50, 32), *blocks, Pooled(1), nn.Linear(32, CLASSES))

    return Work(network, _words, 32)


def _masked() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 32), *(Masked(32, 12) for _ in range(4)), Pooled(1), nn.Linear(32, CLASSES))


def _residual() -> nn.Module:
    blocks = (Residual(16) for _ in range(6))
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, Pooled(2, 3), nn.Linear(16, CLASSES))


def _worded() -> nn.Module:
    layers = (m for _ in range(5) for m in (nn.Linear(64, 64), nn.GELU()))
    return nn.Sequential(nn.Embedding(50, 64), *layers, Pooled(1), nn.Linear(64, CLASSES))


WORKS = {
    "convolutional": Work(_convolutional, _images, 16),
    "attentive": attentive(4),
    "masked": Work(_masked, _words, 32),
    "residual in place": Work(_residual, _images, 16),
    "embedding": Work(_worded, _words, 32),
    "recurrent": Work(lambda: Cell(64), _words, 32),
}


def activated(activation: Callable[[], nn.Module], batch: int = 1024) -> Work:
    """Return a network of linear layers with such activations."""

    def network() -> nn.Module:
        modules = (m for _ in range(6) for m in (nn.Linear(64, 64), activation()))
        return nn.Sequential(*modules, nn.Linear(64, CLASSES))

    return Work(network, lambda size: torch.randn(size, 64), batch)

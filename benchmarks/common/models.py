"""Models at the sizes that papers train, built on whatever device is the default."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def stages(sizes: Sequence[tuple[int, int]]) -> nn.Sequential:
    """Return blocks of convolutions, by width and depth, each ended by a pooling: what a checkpoint is put around."""
    blocks: list[nn.Module] = []
    before = 3
    for width, depth in sizes:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
            before = width
        blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
    return nn.Sequential(*blocks)


def vgg16() -> nn.Sequential:
    """Simonyan and Zisserman 2014, configuration D."""
    features = stages([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)])
    head: list[nn.Module] = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096),
                             nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]  # fmt: skip
    return nn.Sequential(features, nn.Flatten(), *head)


class Bottleneck(nn.Module):
    """Three convolutions around which the input passes by."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.narrow, self.narrow_norm = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.middle, self.middle_norm = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.wide, self.wide_norm = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if before == after and stride == 1 else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.narrow_norm(self.narrow(x)), inplace=True)
        y = functional.relu(self.middle_norm(self.middle(y)), inplace=True)
        y = self.wide_norm(self.wide(y))
        y += self.shortcut(x)
        return functional.relu(y, inplace=True)


def resnet(depths: tuple[int, int, int, int]) -> nn.Module:
    """He et al. 2015, with the stride in the middle convolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                               nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    before = 64
    for stage, depth in enumerate(depths):
        for block in range(depth):
            layers.append(Bottleneck(before, 64 << stage, 2 if stage > 0 and block == 0 else 1))
            before = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True) -> Tensor:
    """Attention. On meta torch would take the kernel that keeps all scores; a GPU takes these."""
    if query.dtype == torch.float32:
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        attended: Tensor = fused(query, key, value, None, True, 0.0, causal)[0]
    else:
        attended = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)[0]
    return attended


class DecoderLayer(nn.Module):
    """Attention and a feed-forward net, each after a norm and around which the input passes by."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm, self.net_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project_in(self.attention_norm(x)).split(width, dim=2)
        query, key, value = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        attended = attention(query, key, value, causal=self.causal).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project_out(attended)
        after: Tensor = x + self.net(self.net_norm(x))
        return after


class Decoder(nn.Module):
    """GPT-2 (Radford et al. 2019) without dropout; the embedding is the last layer's weight too."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int = 50257) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2020, with the mean of all places instead of a class token."""

    def __init__(self, layers: int, width: int, heads: int, patches: int) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, width, 16, 16), nn.Embedding(patches, width)
        self.layers = nn.Sequential(*(DecoderLayer(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places.weight
        classes: Tensor = self.head(self.norm(self.layers(x)).mean(1))
        return classes


class LlamaLayer(nn.Module):
    """Attention with fewer keys than queries and turned places, and a gated net. Norms are one kernel, as on a GPU."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.size, self.heads, self.key_heads = width // heads, heads, key_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        keys = key_heads * self.size
        self.query, self.key, self.value, self.out, self.gate, self.up, self.down = (
            nn.Linear(before, after, bias=False)
            for before, after in ((width, width), (width, keys), (width, keys), (width, width), (width, inner),
                                  (width, inner), (inner, width))
        )  # fmt: skip

    def turned(self, x: Tensor, turns: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * turns + torch.cat((-second, first), -1) * turns

    def repeated(self, x: Tensor) -> Tensor:
        batch, heads, length, size = x.shape
        wide = x.unsqueeze(2).expand(batch, heads, self.heads // heads, length, size)
        return wide.reshape(batch, self.heads, length, size)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norms[0](x)
        query, key, value = (
            project(y).view(batch, length, -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        key, value = self.repeated(self.turned(key, turns)), self.repeated(value)
        attended = attention(self.turned(query, turns), key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        after: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return after


class Llama(nn.Module):
    """The shape of Llama 3 (Grattafiori et al. 2024)."""

    def __init__(
        self, layers: int, width: int, heads: int, key_heads: int, inner: int, length: int, words: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, key_heads, inner) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, words, bias=False)
        self.register_buffer("turns", torch.zeros(length, width // heads))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


def twice(before: int, after: int) -> nn.Sequential:
    """Return two convolutions, each with a norm."""
    return nn.Sequential(*(
        layer for width in (before, after)
        for layer in (nn.Conv2d(width, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
    ))  # fmt: skip


class UNet(nn.Module):
    """Ronneberger et al. 2015, with padding and norms: down four times, up again, with the way down beside it."""

    def __init__(self, width: int, outputs: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise([3, *widths]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(twice(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        beside: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            beside.append(x)
        beside.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([beside.pop(), grow(x)], dim=1))
        result: Tensor = self.last(x)
        return result

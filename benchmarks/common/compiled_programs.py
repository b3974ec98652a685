"""Programs that train a model and its loss, which `torch.compile` has compiled."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.paths import ROOT

Loss = Callable[[], Tensor]
Program = Callable[[int], tuple[nn.Module, Loss]]
"""Of the times that its batch is as large as on a CPU."""
STEPS = 14
"""Enough for a plan: one shows the optimizer, two are alike, two are recorded, and a share takes effect."""


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the compiler looks classes up
    spec.loader.exec_module(module)
    return module


class _Of(nn.Module):
    """A model with its loss, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.loss(self.model, *inputs)


def mlp(times: int) -> tuple[nn.Module, Loss]:
    """Normalised layers of one width."""
    layers = (layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()))
    module = _Of(nn.Sequential(*layers), lambda model, x: model(x).square().mean())
    run = torch.compile(module)
    return module, lambda: run(torch.randn(512 * times, 256))


class Block(nn.Module):
    """Attention and two layers, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        deeper: Tensor = x + self.layers(self.between(x))
        return deeper


def gpt(times: int) -> tuple[nn.Module, Loss]:
    """A small language model of bytes, with one matrix for both ends."""
    width = 128
    body = nn.Sequential(*(Block(width, 4) for _ in range(4)), nn.LayerNorm(width))
    tokens = nn.Embedding(256, width)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.body = tokens, body

        def forward(self, text: Tensor) -> Tensor:
            logits = self.body(self.tokens(text[:, :-1])) @ self.tokens.weight.t()
            loss: Tensor = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            return loss

    module = Model()
    run = torch.compile(module)
    return module, lambda: run(torch.randint(256, (8 * times, 65)))


def resnet(times: int) -> tuple[nn.Module, Loss]:
    """The example's, with its batch norms."""
    module = _Of(_example("resnet").ResNet(16, 2, classes=2), lambda model, x, y: functional.cross_entropy(model(x), y))
    run = torch.compile(module)
    return module, lambda: run(torch.randn(16 * times, 3, 32, 32), torch.randint(2, (16 * times,)))


def unet(times: int) -> tuple[nn.Module, Loss]:
    """The example's, under autocast."""
    module = _Of(_example("unet").UNet(16, 3), lambda model, x, y: functional.mse_loss(model(x), y))
    run = torch.compile(module)

    def loss() -> Tensor:
        clean = torch.rand(4 * times, 3, 32, 32)
        with torch.autocast(clean.device.type, dtype=torch.bfloat16):
            found: Tensor = run(clean + 0.1 * torch.randn_like(clean), clean)
        return found

    return module, loss


def lstm(times: int) -> tuple[nn.Module, Loss]:
    """The example's: the compiler leaves the recurrent layers as they are."""

    def of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x, None)[0].flatten(0, 1), y.flatten())

    module = _Of(_example("lstm").LanguageModel(96, 2), of)
    run = torch.compile(module)
    return module, lambda: run(torch.randint(256, (32 * times, 16)), torch.randint(256, (32 * times, 16)))


PROGRAMS: dict[str, Program] = {
    "mlp": mlp, "gpt": gpt, "resnet": resnet, "unet": unet, "lstm": lstm,
}  # fmt: skip
COMPILED_OPTIMIZER = ("mlp", "gpt")


def train(name: str, steps: int = STEPS, times: int = 1) -> list[Tensor]:
    """Train one of the programs from its beginning; return its losses, gradients, weights, buffers and moments.

    It is on torch's default device. (Otherwise the threads of a kernel add up an embedding's gradient in any order: no
    run is like another.)
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return list(_train(name, steps, times))
    finally:
        torch.use_deterministic_algorithms(before)


def _train(name: str, steps: int, times: int) -> Iterator[Tensor]:
    torch.compiler.reset()
    torch.manual_seed(0)
    module, loss_of = PROGRAMS[name](times)
    on_gpu = next(module.parameters()).is_cuda  # where a rate that is a tensor has to be used without a look at it
    optimizer = torch.optim.AdamW(module.parameters(), lr=torch.tensor(1e-3), capturable=on_gpu)
    step = torch.compile(optimizer.step) if name in COMPILED_OPTIMIZER else optimizer.step
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        step()
        yield loss.detach().clone()
    for parameter in module.parameters():
        assert parameter.grad is not None
        yield from (parameter.detach(), parameter.grad)
        yield from (value for value in optimizer.state[parameter].values() if isinstance(value, Tensor))
    yield from module.buffers()

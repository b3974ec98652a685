"""The model, the batches and the check that the tests of all trainers share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import memfit

WIDTH = 64
BUDGET = 320 << 10  # bytes: the weights, gradients and moments of `network` alone are 400 KiB


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def batches(count: int, rows: int = 32) -> Tensor:
    return torch.randn(count * rows, WIDTH, generator=torch.Generator().manual_seed(1))


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[object]:
    """The weights and the optimizer's state, copied."""
    return [
        {name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
        {
            (number, name): value.clone() if isinstance(value, Tensor) else value
            for number, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        },
    ]


@contextlib.contextmanager
def limited(budget: int | str | None) -> Iterator[memfit.Session | None]:
    """A session that evicts and pins no weight, or none if there is no budget."""
    if budget is None:
        yield None
        return
    with memfit.session(budget, "ram") as session:
        yield session
    assert session.stats.evictions > 0 and session.stats.peak_footprint_bytes <= session.stats.budget_bytes


def pinned(session: memfit.Session | None, model: nn.Module) -> int:
    """The number of weights that a session cannot move any more."""
    engine = session._running.engine if session is not None else None
    return sum(not engine.may_leave(weight) for weight in model.parameters()) if engine is not None else 0

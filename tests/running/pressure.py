"""How a test makes sure that a tensor's bytes are not in the arena, or that they cannot leave it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from memfit.errors import BudgetError
from memfit.running import engine

BUDGET = 1 << 20
COUNT = 1 << 16
"""Floats in a tensor: 256 KiB, a quarter of the budget."""


def is_resident(target: torch.Tensor | torch.UntypedStorage) -> bool:
    return bool(engine.load().is_resident(target))


def is_full_of(tensor: torch.Tensor, value: float) -> bool:
    """Return whether every element is `value`."""
    return tensor.min().item() == tensor.max().item() == value


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in memory that no session answers for."""
    return engine.load().block_id(tensor) == -1


def peak_rss_bytes() -> int:
    """Return the most that the process has had in memory since it was last asked, by the kernel's own count."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) << 10


def press() -> None:
    """Use more than the whole budget for a moment, so that everything that may leave the arena does."""
    fillers = [torch.full((COUNT,), float(number)) for number in range(8)]
    for filler in fillers:
        filler.add_(1)
    with suppress(BudgetError):  # something has to stay
        torch.full((4 * COUNT,), 1.0)


def ramp() -> torch.Tensor:
    """Return 0, 1, 2, ... as floats."""
    return torch.arange(COUNT, dtype=torch.float32)


def evicted(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Return `tensor`, or a new ramp, with its bytes out of the arena."""
    tensor = ramp() if tensor is None else tensor
    tensor.add_(0)
    press()
    assert not is_resident(tensor), "the pressure did not push it out"
    return tensor

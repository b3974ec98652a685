"""Rows of equal numbers, and tiers that fail."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from memfit.running.engine.disturbed import DisturbedTier

BUDGET = 60_000
NUMBERS = 2_500  # of floats in a tensor: five fit the budget


def faulty(folder: Path, kind: str = "disk", **faults: object) -> DisturbedTier:
    """Return a tier that fails; `kind` is "ram", "disk" or "disk,compress"."""
    kind, _, option = kind.partition(",")
    return DisturbedTier(kind, str(folder) if kind == "disk" else "", compress=bool(option), **faults)


def row(value: int) -> Tensor:
    return torch.full((NUMBERS,), float(value))


def holds(tensor: Tensor, value: int) -> bool:
    return torch.equal(tensor, torch.full((NUMBERS,), float(value)))


def fill(rows: list[Tensor], count: int) -> None:
    """Append `count` rows, numbered as they come."""
    for _ in range(count):
        rows.append(row(len(rows)))

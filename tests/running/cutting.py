"""An op that cuts up the room, so that what it allocates last finds no long stretch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

MIB = 1 << 20
UNIT = {"cpu": MIB, "cuda": 4 * MIB}
"""The bytes of a unit: on a GPU two of the driver's pages."""
sizes: list[int] = []
"""What the op allocates, in units, one after the other. Of all but the last every other one goes before that comes."""


def full(units: int, device: str = "cpu") -> Tensor:
    """Return a tensor that is full of its number of units."""
    return torch.full((units * UNIT[device] // 4,), float(units), device=device)


def are_full(tensors: Iterable[Tensor]) -> bool:
    """Return whether each is as `full` made it."""
    return all(t.amin().item() == t.amax().item() == t.numel() * 4 // UNIT[t.device.type] for t in tensors)


@torch.library.custom_op("memfit_cutting::cut_up", mutates_args=())
def _cut_up(x: Tensor) -> list[Tensor]:
    kept = [full(units, x.device.type) for units in sizes[:-1]]
    del kept[::2]
    return [*kept, full(sizes[-1], x.device.type)]


cut_up = torch.ops.memfit_cutting.cut_up

"""What a call costs under a plan of which it is a part."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.common.timing import ns_a_call
from memfit.running.session import Session

_ITERATIONS = 30


def us_under_a_plan(call: Callable[[], object], calls: int) -> list[float]:
    """Return the microseconds of a call in each iteration of a small network that runs by a plan of 60 % of its peak.

    So many calls stand between its forward and its backward pass, and are ops of the plan. Raises RuntimeError if no
    iteration ran by a plan.
    """
    found = []
    with Session("60%", "ram", device="cpu") as session:
        model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.ones(64, 256)
        for _ in range(_ITERATIONS):
            before = session.planned_iterations
            loss = model(batch).square().mean()
            us = ns_a_call(call, calls) / 1000
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if session.planned_iterations > before:
                found.append(us)
    if not found:
        raise RuntimeError("no iteration ran by a plan")
    return found

"""The samples of torch's optimizers (optim_db): a few steps by every implementation, and a copy by its state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_optimizers import optim_db

from running.stress.samples import Group, Sample

STEPS = 3


def groups() -> Iterator[Group]:
    """Yield a group for every optimizer and implementation."""
    for info in optim_db:
        for how in ("", "foreach", "fused"):
            if not how or how in info.supported_impls:
                yield Group(f"optimizer {info.optim_cls.__name__} {how or 'loop'}", partial(samples, info, how))


def samples(info: Any, how: str) -> Iterator[Sample]:
    """Yield a sample for every one of torch's."""
    options = {"foreach": False, "fused": False} if not how else {how: True}
    options = {name: value for name, value in options.items() if value or name in info.supported_impls}
    for given in info.optim_inputs_func("cpu"):
        yield Use(info, {**given.kwargs, **options}).sample()


class Use:
    """An optimizer of two parameters."""

    def __init__(self, info: Any, options: dict[str, Any]) -> None:
        self.parameters = [torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(7, 2))]
        self.sparse = info.only_supports_sparse_grads
        self.optimizer = info.optim_cls(self.parameters, **options)

    def sample(self) -> Sample:
        """Return the parts."""
        return Sample({"steps": self.steps, "state": self.state, "inputs": lambda: self.parameters})

    def loss(self) -> torch.Tensor:
        """Return something to be made less, with gradients."""
        self.optimizer.zero_grad()
        loss = sum((parameter * torch.randn_like(parameter)).square().sum() for parameter in self.parameters)
        loss.backward()
        if self.sparse:
            for parameter in self.parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    def steps(self) -> Any:
        """Take a few steps."""
        return [self.optimizer.step(self.loss) for _ in range(STEPS)], self.parameters

    def state(self) -> Any:
        """Go on with the state of a copy."""
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return self.optimizer.step(self.loss), self.optimizer.state_dict()

"""The samples of torch's modules (module_db): training and evaluation, backward, copies and state_dicts."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

from running.stress.operators import differentiable, direction, tensors
from running.stress.samples import Group, Sample


def groups() -> Iterator[Group]:
    """Yield all groups of modules."""
    for info in module_db:
        if torch.float32 in info.supported_dtypes("cpu"):
            for training in (True, False):
                name = f"module {info.formatted_name} {'training' if training else 'evaluation'}"
                yield Group(name, partial(samples, info, training))


def samples(info: Any, training: bool) -> Iterator[Sample]:
    """Yield a sample for every one of torch's."""
    inputs = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=training)
    for given in inputs:
        yield Use(info, given, training).sample()


class Use:
    """A module and its inputs, and what can be done with them."""

    def __init__(self, info: Any, given: Any, training: bool) -> None:
        arguments = given.constructor_input
        self.module = info.module_cls(*arguments.args, **arguments.kwargs).train(training)
        self.inputs = (given.forward_input.args, given.forward_input.kwargs) if given.forward_input else None
        self.result: Any = None

    def sample(self) -> Sample:
        """Return the parts."""
        return Sample({"forward": self.forward, "backward": self.backward, "state": self.state, "inputs": self.seen})

    def run(self) -> Any:
        """Call the module."""
        return self.module(*self.inputs[0], **self.inputs[1]) if self.inputs is not None else ()

    def forward(self) -> Any:
        """Run it, and remember the result."""
        self.result = self.run()
        return self.result

    def backward(self) -> Any:
        """Differentiate it; the gradients are among what is seen last."""
        out = differentiable(self.result)
        if out:
            torch.autograd.backward(out, [direction(tensor) for tensor in out])
        return [tensor.grad for tensor in self.module.parameters()]

    def state(self) -> Any:
        """Write the state to a file, load it into a copy, and run that."""
        file = io.BytesIO()
        torch.save(self.module.state_dict(), file)
        file.seek(0)
        self.module = copy.deepcopy(self.module)
        self.module.load_state_dict(torch.load(file, weights_only=False))
        return self.run(), self.module.state_dict()

    def seen(self) -> Any:
        """Return inputs, parameters, buffers and gradients."""
        given = tensors(self.inputs or ())
        leaves = [tensor.grad for tensor in given if tensor.is_leaf]
        return given, leaves, list(self.module.parameters()), list(self.module.buffers())

"""Forward passes without gradients: the outermost calls of modules under `torch.no_grad()` and the like.

A script that only evaluates or generates makes no optimizer step; such a pass is what it repeats.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim.optimizer import Optimizer

from memfit.running.doors import module_hooks


class _Outermost(threading.local):
    """The outermost call that a thread is in the midst of; a module may call itself."""

    def __init__(self) -> None:
        self.module: Module | None = None
        self.depth = 0


class Passes:
    """Calls `on_pass` with the module and the tensors it returned at the end of each forward pass without gradients.

    That is a call in no other module's, with gradients off, or one whose results need none. A call that fails, or
    that returns no tensor, is none.
    """

    def __init__(self, on_pass: Callable[[Module, list[Tensor]], None]) -> None:
        self._on_pass = on_pass
        self._outermost = _Outermost()
        self._hooks = ExitStack()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every module for as long as the context is open, or until `stop`."""
        self._hooks.enter_context(module_hooks.installed(self._begins, self._ends))
        with self._hooks:
            yield

    def stop(self) -> None:
        """Watch no more: modules cost what they cost without hooks."""
        self._hooks.close()

    def _begins(self, module: Module, *_: Any) -> None:
        outermost = self._outermost
        if outermost.module is None:
            outermost.module = module
        outermost.depth += outermost.module is module

    def _ends(self, module: Module, _: Any, result: Any) -> None:
        outermost = self._outermost
        if outermost.module is not module:
            return
        outermost.depth -= 1
        if outermost.depth:
            return
        outermost.module = None
        outputs = list(tensors_in(result))
        if outputs and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in outputs)):
            self._on_pass(module, outputs)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def has_optimizer() -> bool:
    """Return whether there is an optimizer of torch's in the process."""
    return any(issubclass(type(each), Optimizer) for each in gc.get_objects())

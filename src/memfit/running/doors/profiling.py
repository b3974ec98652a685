"""`torch.profiler` with Python stacks, in a session.

When a module or an optimizer is called for the first time, torch's tracer notes the address of each of its parameters,
from C++, and fails where the bytes are away. It knows these calls by their code objects: run from others, they
are profiled as the Python functions they are. What autograd's nodes are given is brought in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import answered, replaced

_KNOWN = ((torch.nn.Module, "__call__"), (torch.optim.Optimizer, "_optimizer_step_code"))


@contextmanager
def calls_unnamed(engine: EngineModule) -> Iterator[None]:
    """Keep the profiler's tracer away from parameters for as long as the context is open."""
    names = torch._C._autograd
    with ExitStack() as profiled:
        unnamed = _Unnamed(engine, profiled)
        if names._profiler_enabled():
            unnamed.begin()
        with (
            answered(engine, names, "_enable_profiler", unnamed.enabling),
            answered(engine, names, "_disable_profiler", unnamed.disabling),
        ):
            yield


class _Unnamed:
    def __init__(self, engine: EngineModule, stack: ExitStack) -> None:
        self._engine = engine
        self._stack = stack

    def begin(self) -> None:
        self._engine.watch_nodes(True)
        self._stack.callback(self._engine.watch_nodes, False)
        for owner, name in _KNOWN:
            self._stack.enter_context(replaced(owner, name, _copy(getattr(owner, name))))

    def enabling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enabling(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)  # in here, the first time, the tracer learns what it looks for
            self.begin()
            return result

        return enabling

    def disabling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def disabling(*args: Any, **kwargs: Any) -> Any:
            self._stack.close()
            return original(*args, **kwargs)

        return disabling


def _copy(function: Any) -> FunctionType:
    """Return the same function with a code object of its own."""
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__qualname__ = function.__qualname__
    return copy

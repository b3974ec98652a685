"""Kernels that Python launches (Triton's): no ops, so each launch is made one.

A launcher asks its tensors for their addresses by `data_ptr()`, whose storages would otherwise stay where they are for
good: with kernels of Triton in each layer nothing could leave any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced, when_imported

# Where the classes are whose `run` launches a kernel: a module, the class, and where an instance has its function.
_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction", "fn"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "fn"),
)


@contextmanager
def launches_seen(engine: EngineModule) -> Iterator[None]:
    """Have launches be ops, once their library is imported."""
    with ExitStack() as stack:
        for library, name, function in _LAUNCHERS:

            def found(module: ModuleType, name: str = name, function: str = function) -> None:
                launcher: Any = getattr(module, name, None)
                if hasattr(launcher, "run"):
                    stack.enter_context(replaced(launcher, "run", _as_op(engine, launcher.run, function)))

            stack.enter_context(when_imported(library, found))
        yield


def _as_op(engine: EngineModule, run: Callable[..., Any], function: str) -> Callable[..., Any]:
    def launch(launcher: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = getattr(getattr(launcher, function, None), "__name__", type(launcher).__name__)
        return engine.call_as_op(run, f"triton::{kernel}", launcher, *args, **kwargs)

    return launch

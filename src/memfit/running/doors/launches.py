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

# The classes whose `run` launches a kernel, by their modules. An instance has its function as `fn`.
_LAUNCHERS = {
    "triton.runtime.jit": "JITFunction",
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner",
}


@contextmanager
def launches_seen(engine: EngineModule) -> Iterator[None]:
    """Have launches be ops, once their library is imported."""
    with ExitStack() as stack:
        for library, name in _LAUNCHERS.items():

            def found(module: ModuleType, name: str = name) -> None:
                launcher: Any = getattr(module, name, None)
                if hasattr(launcher, "run"):
                    stack.enter_context(replaced(launcher, "run", _as_op(engine, launcher.run)))

            stack.enter_context(when_imported(library, found))
        yield


def _as_op(engine: EngineModule, run: Callable[..., Any]) -> Callable[..., Any]:
    def launch(launcher: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = getattr(getattr(launcher, "fn", None), "__name__", type(launcher).__name__)
        return engine.call_as_op(run, f"triton::{kernel}", launcher, *args, **kwargs)

    return launch

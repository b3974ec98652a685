"""Kernels that Python launches (Triton's): no ops, so each launch is made one.

A launcher asks its tensors for their addresses by `data_ptr()`, whose storages would otherwise stay where they are for
good: with kernels of Triton in each layer nothing could leave any more. Inductor names the arguments of its kernels by
what they are for; a kernel of anybody else's may write to each of its tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced, when_imported

# The classes whose `run` launches a kernel, by their modules. An instance has its function as `fn`.
_LAUNCHERS = {
    "triton.runtime.jit": "JITFunction",
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner",
}
_READ = "in_ptr"  # how the names of arguments begin that inductor's kernels read: it names what they write to as well


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
    known: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()

    def launch(launcher: Any, *args: Any, **kwargs: Any) -> Any:
        name = f"triton::{getattr(getattr(launcher, 'fn', None), '__name__', type(launcher).__name__)}"
        tensors, writes = _signature(launcher)
        if len(tensors) <= len(args) or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
            return engine.call_as_op(run, name, launcher, *args, **kwargs)
        if launcher not in known:
            known[launcher] = engine.kernel_as_op(run, name, tensors, writes)
        return known[launcher](launcher, *args, **kwargs)

    return launch


def _signature(launcher: Any) -> tuple[list[bool], list[bool]]:
    """Return which arguments of `run`, itself first, are tensors, and which it may write to; nothing if not known."""
    types = (getattr(launcher, "triton_meta", None) or {}).get("signature")
    mutated = getattr(launcher, "mutated_arg_names", None)
    is_users = str(getattr(launcher, "heuristic_type", "")).endswith("USER_AUTOTUNE")  # with names of their own
    if not isinstance(types, dict) or mutated is None or is_users:
        return [], []
    tensors = {name: str(kind).startswith("*") for name, kind in types.items()}
    writes = [is_one and (not name.startswith(_READ) or name in mutated) for name, is_one in tensors.items()]
    return [False, *tensors.values()], [False, *writes]

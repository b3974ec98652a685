"""`torch.compile` in a session: a kernel that inductor has generated has its tensors in memory while it runs.

A compiled graph's wrapper is Python: it allocates, calls ops, and calls kernels, which are globals of its module and
read the pointers of the tensors they are given. Nobody sees these calls, so the kernels are exchanged for as long as
a session is active.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from memfit.errors import BudgetError
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced, when_imported
from memfit.units import format_bytes

_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(", re.MULTILINE)


@contextmanager
def kernels_held(engine: EngineModule) -> Iterator[None]:
    """Hold the tensors that generated kernels are given; kernels that are loaded later are covered too."""
    with ExitStack() as stack:

        def found(codecache: ModuleType) -> None:
            cache = codecache.PyCodeCache
            for module in list(cache.modules):
                _exchange(engine, stack, module)
            load = cache.load_by_key_path.__func__

            def load_by_key_path(cls: Any, *args: Any, **kwargs: Any) -> ModuleType:
                known = len(cls.modules)
                module: ModuleType = load(cls, *args, **kwargs)
                if len(cls.modules) > known:
                    _exchange(engine, stack, module)
                return module

            stack.enter_context(replaced(cache, "load_by_key_path", classmethod(load_by_key_path)))

        stack.enter_context(when_imported("torch._inductor.codecache", found))
        yield


def _exchange(engine: EngineModule, stack: ExitStack, module: ModuleType) -> None:
    file = Path(module.__file__ or "")
    for name in _KERNEL.findall(file.read_text()) if file.is_file() else ():
        kernel = vars(module).get(name)
        if callable(kernel):
            stack.enter_context(replaced(module, name, _holding(engine, name, kernel)))


def _holding(engine: EngineModule, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def holding(*args: Any) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        holds: list[Any] = []
        try:
            engine.adopt(tensors)  # the wrapper's allocations have been used now, and may leave after this
            holds.extend(engine.Hold(tensor) for tensor in tensors)
            return kernel(*args)
        except BudgetError as error:
            raise _too_small(name, tensors) from error
        finally:
            for hold in holds:
                hold.release()

    return holding


def _too_small(name: str, tensors: list[torch.Tensor]) -> BudgetError:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    needed = sum(storages.values())
    return BudgetError(
        f"the budget cannot be met: torch.compile's kernel {name} needs {format_bytes(needed)} at once",
        why=f"its {len(storages)} tensors must be in memory together",
        remedy="raise the budget, or compile less: one kernel of a compiled optimizer step uses every parameter",
        required_bytes=needed,
        op=name,
    )


def uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep a hook out of what `torch.compile(optimizer.step)` compiles, without importing the compiler."""
    frames = torch._C._dynamo.eval_frame

    def called(*args: Any) -> None:
        before = frames.set_eval_frame(None)
        try:
            hook(*args)
        finally:
            frames.set_eval_frame(before)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(called.__code__, frames._FrameExecStrategy(skip, skip))
    return called

"""`torch.compile` in a session: a kernel that inductor has generated is an op.

A compiled graph's wrapper is Python: it allocates, calls ops, and calls kernels, which are globals of its module and
read the pointers of the tensors they are given. Nobody sees these calls, so the kernels are exchanged for as long as
a session is active.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced, when_imported

_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(", re.MULTILINE)


@contextmanager
def kernels_seen(engine: EngineModule) -> Iterator[None]:
    """Have calls of generated kernels be ops; kernels that are loaded later are covered too."""
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
            stack.enter_context(replaced(module, name, partial(engine.call_as_op, kernel, name)))


def uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep a hook out of what `torch.compile` compiles, such as `optimizer.step`, without importing the compiler."""
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

"""`torch.compile` in a session: a kernel that inductor has generated is an op, which reads and writes what it says.

A compiled graph's wrapper is Python: it allocates, calls ops, and calls kernels, which are globals of its module and
read the pointers of the tensors they are given. Nobody sees these calls, so the kernels are exchanged for as long as
a session is active. What a kernel does with its arguments is written in the wrapper: `'const float*'` is a tensor that
it reads, `'float*'` one that it writes to.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

from memfit.errors import UsageError
from memfit.running.doors import cpp_wrappers
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced, when_imported

_MADE = re.compile(r"\basync_compile\.(\w+)\(")
_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((\[[^\]]*\]),", re.MULTILINE)
# What makes no kernel, or one that is launched by Python (launches.py).
_OTHERS = {"wait", "triton", "multi_kernel", "size_hint_multi_kernel"}
_WRAPPERS = "torch._inductor.runtime.compile_tasks."


@contextmanager
def kernels_seen(engine: EngineModule) -> Iterator[None]:
    """Have calls of generated kernels be ops; kernels that are loaded later are covered too.

    Raises UsageError if there is a kernel of a form that is not known.
    """
    with ExitStack() as stack:
        stack.enter_context(cpp_wrappers.packages_refused())

        def found(codecache: ModuleType) -> None:
            cache = codecache.PyCodeCache
            for module in _loaded(cache):
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


def is_kernel(function: Any) -> bool:
    """Return whether a C function is a kernel that inductor has generated."""
    home = str(getattr(function, "__module__", ""))
    return function.__name__ == "kernel" and home.rpartition(".")[2] == "kernel"


def _loaded(cache: Any) -> list[ModuleType]:
    """Return the wrappers there are. (A cache that was cleared has forgotten those of functions that live on.)"""
    modules = [*cache.modules, *(module for name, module in sys.modules.items() if name.startswith(_WRAPPERS))]
    return list({id(module): module for module in modules}.values())


def _exchange(engine: EngineModule, stack: ExitStack, module: ModuleType) -> None:
    file = Path(module.__file__ or "")
    source = file.read_text() if file.is_file() else ""
    if cpp_wrappers.is_one(source):
        stack.enter_context(cpp_wrappers.refused(module))
    kernels = _kernels(source, file)
    for name, types in kernels.items():
        kernel = vars(module).get(name)
        if not callable(kernel):
            raise _unknown(name, file)
        tensors = ["*" in each for each in types]
        writes = ["*" in each and "const" not in each.split() for each in types]
        op = engine.kernel_as_op(kernel, f"inductor::{name}", tensors, writes)
        stack.enter_context(replaced(module, name, op))
    for name, value in vars(module).items():
        if isinstance(value, BuiltinFunctionType) and is_kernel(value):
            raise _unknown(name, file)


def _kernels(source: str, file: Path) -> dict[str, list[str]]:
    """Return the types of the arguments of each C++ kernel that a wrapper has, by its name."""
    made = _MADE.findall(source)
    for form in made:
        if form != "cpp_pybinding" and form not in _OTHERS:
            raise _unknown(form, file)
    kernels = _KERNEL.findall(source)
    if len(kernels) != made.count("cpp_pybinding"):
        raise _unknown("cpp_pybinding", file)
    return {name: ast.literal_eval(types) for name, types in kernels}


def _unknown(what: str, file: Path) -> UsageError:
    return UsageError(
        f"a kernel of torch.compile has a form that memfit does not know: {what} in {file}",
        why="memfit could not tell which tensors it reads and writes",
        remedy="leave torch.compile out, or use its backend 'eager' or 'aot_eager'",
    )

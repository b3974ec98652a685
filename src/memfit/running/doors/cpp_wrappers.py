"""Compiled graphs whose wrapper is C++ (`cpp_wrapper=True`, AOTInductor): refused, since nobody sees what they call.

Kernels, allocations and ops are called there without Python and without torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NoReturn

import torch

from memfit.errors import UsageError
from memfit.running.engine.patching import replaced


def is_one(source: str) -> bool:
    """Return whether a wrapper's source is of the kind."""
    return "CppWrapperCodeCache.load_pybinding" in source


@contextmanager
def refused(module: ModuleType) -> Iterator[None]:
    """Have calls of a graph with such a wrapper raise UsageError for as long as the context is open.

    Raises UsageError at once for one of an unknown form. (Whoever calls the graph has the function `call` of the module
    by itself, which knows the compiled one by a cell.)
    """
    compiled = vars(module).get("inductor_entry")
    cells = [cell for cell in vars(module)["call"].__closure__ or () if cell.cell_contents is compiled]
    if not cells:
        _refuse_wrapper()
    cells[0].cell_contents = _refuse_wrapper
    try:
        yield
    finally:
        cells[0].cell_contents = compiled


@contextmanager
def packages_refused() -> Iterator[None]:
    """Have calls of models that AOTInductor has compiled raise UsageError for as long as the context is open."""
    runners = [value for value in vars(torch._C._aoti).values() if isinstance(value, type)]
    with ExitStack() as stack:
        for runner in runners:
            for name in {"run", "boxed_run"} & set(vars(runner)):
                stack.enter_context(replaced(runner, name, _refuse_package))
        yield


def _refuse_wrapper(*_: Any) -> NoReturn:
    raise UsageError(
        "what torch.compile made with cpp_wrapper=True does not run in a session",
        why="its kernels are called from C++, where memfit does not see what they read and write",
        remedy="compile without it (cpp_wrapper=False, TORCHINDUCTOR_CPP_WRAPPER=0)",
    )


def _refuse_package(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "a package that AOTInductor compiled does not run in a session",
        why="its kernels are called from C++, where memfit does not see what they read and write",
        remedy="run the exported program (torch.export.load(...).module()), or what torch.compile makes of it",
    )

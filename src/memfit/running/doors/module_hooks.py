"""Hooks of memfit's on all modules, which the compiler does not see.

It would look at them, break its graphs there, and so make other kernels than without a session. So they are away while
something is compiled; what has been compiled does not ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

from memfit.running.doors.uncompiled import uncompiled
from memfit.running.engine.patching import replaced, when_imported
from memfit.running.frames import hook


@contextmanager
def installed(begins: Callable[..., None], ends: Callable[..., None]) -> Iterator[None]:
    """Call `begins` before each forward pass and `ends` after it, for as long as the context is open.

    `begins` is given the module and its inputs, `ends` the module, its inputs and its output. Contexts may close in any
    order.
    """
    hooks = _Hooks(uncompiled(hook(begins)), uncompiled(hook(ends)))
    if not _all:
        _unseen.enter_context(_compilations(_remove_all, _set_all))
        _unseen.enter_context(replaced(modules, "_has_any_global_hook", _are_others))
    _all.append(hooks)
    try:
        hooks.set()
        yield
    finally:
        hooks.remove()
        _all.remove(hooks)
        if not _all:
            _unseen.close()


class _Hooks:
    def __init__(self, begins: Callable[..., None], ends: Callable[..., None]) -> None:
        self._begins, self._ends = begins, ends
        self._handles: list[RemovableHandle] = []

    def set(self) -> None:
        if not self._handles:
            self._handles.append(modules.register_module_forward_pre_hook(self._begins))
            self._handles.append(modules.register_module_forward_hook(self._ends, always_call=True))

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


_all: list[_Hooks] = []
_unseen = ExitStack()  # what keeps all of them from the compiler


def _remove_all() -> None:
    for hooks in _all:
        hooks.remove()


def _set_all() -> None:
    for hooks in _all:
        hooks.set()


@contextmanager
def _compilations(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin` and `end` around all that is compiled for as long as the context is open.

    (The list of callbacks that torch has for this is emptied by `torch.compiler.reset`.)
    """
    with ExitStack() as stack:

        def found(callback: ModuleType) -> None:
            handler: Any = callback.CompilationCallbackHandler
            starts, ends = handler.run_start_callbacks, handler.run_end_callbacks

            def run_start_callbacks(self: Any, *args: Any) -> None:
                begin()
                starts(self, *args)

            def run_end_callbacks(self: Any, *args: Any) -> None:
                ends(self, *args)
                end()

            stack.enter_context(replaced(handler, "run_start_callbacks", run_start_callbacks))
            stack.enter_context(replaced(handler, "run_end_callbacks", run_end_callbacks))

        stack.enter_context(when_imported("torch._dynamo.callback", found))
        yield


def _are_others() -> bool:
    """Return whether anybody else has hooks on all modules: torch warns of such that see a compiled module twice."""
    kinds = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
    hooks = [hook for kind in kinds for hook in getattr(modules, f"_global_{kind}").values()]
    return any(hook.__module__ != uncompiled.__module__ for hook in hooks)

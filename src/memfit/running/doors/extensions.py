"""Compiled functions of other libraries (apex, a CUDA extension): no ops, so each call of one is made an op.

Such a function reads and writes its tensors through raw pointers. Between ops nothing keeps a storage where it is: an
op that the function calls could move what the function has the address of, and a write would be lost with the next
eviction. As an op it has all its tensors in memory until it returns, is taken to write to each, and is in the plan.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from memfit.messages import say
from memfit.running.doors import compiled
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import redirected, replaced

_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep


@contextmanager
def calls_seen(engine: EngineModule) -> Iterator[None]:
    """Have calls of compiled functions be ops; functions that are loaded later are covered too."""
    with ExitStack() as stack:
        answers = Answers(engine, stack)
        answers.cover()
        execute = ExtensionFileLoader.exec_module

        def exec_module(loader: ExtensionFileLoader, module: ModuleType) -> None:
            execute(loader, module)
            answers.cover()

        stack.enter_context(replaced(ExtensionFileLoader, "exec_module", exec_module))
        yield


@dataclass
class Answers:
    """What answers for the functions of libraries, until the stack unwinds.

    Attributes:
        engine: The engine.
        stack: What unwinds.
        covered: The paths of the libraries.
        unseen: The modules of functions for which there was no way.
    """

    engine: EngineModule
    stack: ExitStack
    covered: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)

    def cover(self) -> None:
        """Answer for the functions of all libraries that are loaded by now and use torch's, but are not torch's own."""
        paths = [path for path in self.engine.libraries_with_torch() if path not in self.covered]
        self.covered.update(paths)
        if others := [path for path in paths if not os.path.realpath(path).startswith(_TORCH)]:
            self._cover(others)
        for name in sorted(self.unseen):
            say(f"memfit: warning: functions of {name} are not seen: call them in `with session.hold(tensor):`")
        self.unseen.clear()

    def _cover(self, paths: list[str]) -> None:
        functions, modules = self.engine.parts_of(paths)
        for function in functions:
            if compiled.is_kernel(function):
                continue
            home = function if isinstance(function, BuiltinFunctionType) else function.__objclass__
            self._redirect(function, f"{home.__module__}::{function.__name__}")
        for module in modules:
            for name, value in list(vars(module).items()):
                self._answer_for(module, name, value)

    def _answer_for(self, module: ModuleType, name: str, value: Any) -> None:
        """Answer for a function of another form than Python's own (nanobind's, Cython's)."""
        if callable(value) and not isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            answer = functools.partial(self.engine.call_as_op, value, f"{module.__name__}::{name}")
            self.stack.enter_context(replaced(module, name, answer))

    def _redirect(self, function: Any, op: str) -> None:
        def answer(original: Any) -> Any:
            return functools.partial(self.engine.call_as_op, original, op)

        try:
            self.stack.enter_context(redirected(self.engine, function, answer))
        except TypeError:
            self.unseen.add(op.partition("::")[0])

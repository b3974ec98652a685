"""Ways to stand before a function of torch or of a library for as long as a session lasts."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch

from memfit.running.engine.module import EngineModule
from memfit.running.frames import passing

_DEVICES = ("cpu", "cuda")


def has_storage(target: Any) -> bool:
    """Return whether `target` is a storage, or a tensor with one, that a session may have taken the bytes of."""
    if isinstance(target, torch.UntypedStorage):
        return target.device.type in _DEVICES
    if not isinstance(target, torch.Tensor):
        return False
    # A function mode would see the property; this is cheaper than `frames.unseen`, and runs at every call of a door.
    with torch._C.DisableTorchFunction():
        return target.device.type in _DEVICES and bool(torch._C._has_storage(target))


def held(engine: EngineModule, target: Any, pin: bool = False) -> Any:
    """Return a context in which the bytes of a tensor or storage, or of several, are in memory.

    `pin` keeps them there until the storage dies, unless the block raises.
    """
    return engine.Hold(target, pin)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for as long as the context is open; one the owner inherits is inherited again after."""
    passing(value)
    own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def redirected(engine: EngineModule, function: Any, answer: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Have calls of a C function go to `answer(original)`, wherever a reference to it was taken.

    Raises TypeError for what cannot be redirected.
    """
    engine.redirect(function, passing(answer(engine.original_of(function))))
    try:
        yield
    finally:
        engine.redirect(function, None)


@contextmanager
def answered(engine: EngineModule, owner: Any, name: str, answer: Callable[[Any], Any]) -> Iterator[None]:
    """Have calls of `owner.name` go to `answer(original)`.

    A C function is caught however it was reached: by another name, or by a reference from before. A Python one is
    replaced as an attribute.
    """
    function = getattr(owner, name, None)
    if function is None:  # this torch has no such door
        yield
    elif isinstance(function, (MethodDescriptorType, BuiltinFunctionType)):
        with redirected(engine, function, lambda original: functools.wraps(original)(answer(original))):
            yield
    else:
        with replaced(owner, name, functools.wraps(function)(answer(function))):
            yield


@contextmanager
def when_imported(name: str, found: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `found` with a module, now or as soon as it is imported."""
    module = sys.modules.get(name)
    if module is not None:
        found(module)
        yield
        return
    finder = _Finder(name, found)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if sys.meta_path is not None and finder in sys.meta_path:  # it is None when the interpreter ends
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Lets the others find one module, and tells when it has been executed."""

    def __init__(self, name: str, found: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._found = found
        self._asking = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:  # otherwise the session is over
                self._found(module)

        loader.exec_module = passing(exec_module)

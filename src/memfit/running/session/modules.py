"""The calls of modules while an iteration is recorded, so that storages can be named by the module that made them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from memfit.running.doors import module_hooks


@dataclass(slots=True)
class _Call:
    module: Module | None  # until it ends
    name: str
    begin: int
    end: int | None = None
    inner: dict[int, str] | None = None  # likewise, the names of the modules inside it, by id

    def name_of(self, module: Module) -> str:
        """Return the name that the called module has for one inside it; "" if it has none."""
        if self.inner is None:
            self.inner = {id(each): name for name, each in self.module.named_modules()} if self.module else {}
        return self.inner.get(id(module), "")

    def ends(self, tick: int) -> None:
        self.end, self.module, self.inner = tick, None, None


class _Running(threading.local):
    """The calls that a thread is in the midst of, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


class Modules:
    """Watches the calls of modules, by the ticks of the recording that `ticks` counts."""

    def __init__(self, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._running = _Running()
        self._calls: list[_Call] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every module for as long as the context is open."""
        with module_hooks.installed(self._begins, self._ends):
            yield

    def calls(self) -> list[tuple[int, int, str]]:
        """Return the first tick of each call so far, one more than its last, and the module; outer calls first."""
        now = self._ticks()
        return [(call.begin, now if call.end is None else call.end, call.name) for call in self._calls]

    def _begins(self, module: Module, *_: Any) -> None:
        call = _Call(module, self._name(module), self._ticks())
        self._running.calls.append(call)
        self._calls.append(call)

    def _ends(self, module: Module, *_: Any) -> None:
        while self._running.calls:  # a call inside it may have ended without its hook
            call = self._running.calls.pop()
            is_it = call.module is module
            call.ends(self._ticks())
            if is_it:
                return

    def _name(self, module: Module) -> str:
        """Return its name in the innermost call that has it, or its class if none has."""
        for outer in reversed(self._running.calls):
            if own := outer.name_of(module):
                return f"{outer.name}.{own}"
        return type(module).__name__

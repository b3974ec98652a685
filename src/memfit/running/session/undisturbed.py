"""The two ends of a `with` block, such that no signal's handler can come in between.

A handler written in Python runs between any two of the interpreter's instructions, the first one of `__exit__`
included, and what it raises (a second Ctrl-C) would leave a session half ended. So both are called by native code,
which notes signals meanwhile and calls their handlers when it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memfit.running import engine


class Undisturbed:
    """`__enter__` or `__exit__` of a class: its method `action`, and `undo` if that or a signal's handler raised."""

    def __init__(self, action: str, undo: str | None = None) -> None:
        self._action = action
        self._undo = undo

    def __get__(self, instance: Any, owner: type | None = None) -> Undisturbed | Callable[..., Any]:
        if instance is None:
            return self
        undo = None if self._undo is None else getattr(instance, self._undo)
        return functools.partial(engine.load().undisturbed, getattr(instance, self._action), undo)

    def __call__(self, instance: Any, *arguments: Any) -> Any:
        """Call it as a function of the class, which is what `contextlib.ExitStack` does."""
        return self.__get__(instance)(*arguments)

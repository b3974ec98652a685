"""Whose fault an exception is, by the frames of its traceback: the program's, or memfit's own.

memfit's functions stand before functions of torch, and are called by torch's hooks. An exception passes through the
former, which call torch for the program; of the latter, which the program knows nothing of, any exception is memfit's.
What memfit itself calls on the program's thread is hidden from the program's modes (`unseen`).
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, TypeVar, cast

import torch

from memfit.errors import MemfitError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OWN = str(Path(__file__).parents[1]) + os.sep
_SITES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_SERVANTS = ("torch", "numpy")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_ANYWHERE = (RecursionError, MemoryError)  # raised wherever the program's limit is met
_passing: set[CodeType] = set()
_hooks: set[CodeType] = set()


def passing(function: _Function) -> _Function:
    """Note that `function` calls others for the program: what comes out of those is not memfit's failure."""
    _passing.update(_codes(function))
    return function


def hook(function: _Function) -> _Function:
    """Return `function` for a hook: the program's modes do not see its calls, and its exceptions are memfit's."""
    _hooks.update(_codes(function))

    @functools.wraps(function)
    def hidden(*args: Any, **kwargs: Any) -> Any:
        with unseen():
            return function(*args, **kwargs)

    return cast(_Function, hidden)


@contextmanager
def unseen() -> Iterator[None]:
    """Hide what is called here from the modes that the program has entered, which may count or replace calls."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def is_memfits(error: BaseException) -> bool:
    """Return whether an exception comes from memfit's own work, and is none that memfit raises on purpose.

    That is so if a hook of memfit's was running, or if the innermost function which is neither torch's, NumPy's nor the
    standard library's is memfit's, and called nobody for the program.
    """
    if not isinstance(error, Exception) or isinstance(error, (MemfitError, *_ANYWHERE)):
        return False
    servants = _folders()
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    if not _hooks.isdisjoint(codes):
        return True
    innermost = next((code for code in reversed(codes) if not _serves(code.co_filename, servants)), None)
    return innermost is not None and innermost.co_filename.startswith(_OWN) and innermost not in _passing


def _folders() -> tuple[str, ...]:
    """Return the folders of the libraries that memfit calls, as far as they are imported."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in _SERVANTS)
    return tuple(str(Path(file).parent) + os.sep for file in found if file)


def _serves(file: str, servants: tuple[str, ...]) -> bool:
    return file.startswith(servants) or (file.startswith(_STANDARD) and not file.startswith(_SITES))


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that are written in it; none for what is not Python's."""
    found = [getattr(getattr(function, "__func__", function), "__code__", None)]
    while found:
        code = found.pop()
        if isinstance(code, CodeType):
            yield code
            found += code.co_consts

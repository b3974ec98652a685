"""Libraries that take seconds to import: imported when their tests are set up, not when these are collected."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


def importing(name: str, library: str = "") -> Any:
    """Return a module that is imported when an attribute of it is first asked for.

    The test module that calls this is skipped if there is no `library`, the first part of `name` unless it is given.
    """
    library = library or name.partition(".")[0]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)
    return _ImportedLater(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import what the test's module names, so that the CPU time of the test's call does not include it."""
    for value in vars(item.module).values() if isinstance(item, pytest.Function) else ():
        if isinstance(value, _ImportedLater):
            importlib.import_module(value.__name__)


class _ImportedLater(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for fixtures by such attributes when it collects
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

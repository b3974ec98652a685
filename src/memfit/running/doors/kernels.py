"""Kernels that the program registers for torch's operators (torch.library): what was known of these holds no longer.

An operator runs again, runs in slices, or is believed to write to nothing but what its schema says only where all its
kernels are torch's own. The engine looks at them when it first sees the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced


def _registered() -> frozenset[str]:
    """Return the kernels that Python has registered, as "aten/sin/CPU"."""
    return frozenset(torch.library._impls)


_known = _registered()  # when the engine last forgot what it knew


@contextmanager
def registrations_seen(engine: EngineModule) -> Iterator[None]:
    """Have the engine look at operators anew whenever a kernel has been registered or taken back."""
    register: Callable[..., Any] = torch.library.Library.impl
    take_back: Callable[..., Any] = torch.library.Library._destroy

    def forget() -> None:
        global _known
        if (registered := _registered()) != _known:
            _known = registered
            engine.forget_operators()

    def impl(library: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return register(library, *arguments, **keywords)
        finally:
            forget()

    def destroy(library: Any) -> None:
        try:
            take_back(library)
        finally:
            forget()

    forget()
    with replaced(torch.library.Library, "impl", impl), replaced(torch.library.Library, "_destroy", destroy):
        yield

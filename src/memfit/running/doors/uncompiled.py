"""memfit's own Python functions, kept out of what `torch.compile` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from memfit.running.frames import passing

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def uncompiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Keep a function out of what is compiled, such as `optimizer.step`, without importing the compiler.

    A compiled graph breaks where it is called.
    """
    frames = torch._C._dynamo.eval_frame

    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        before = frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            frames.set_eval_frame(before)

    passing(called)
    called._torchdynamo_disable = True  # type: ignore[attr-defined]
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(called.__code__, frames._FrameExecStrategy(skip, skip))
    return called

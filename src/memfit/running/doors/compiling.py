"""How inductor compiles while a session is active: what it makes is to fit, and to hold no address for good.

Nothing here changes a number, only what is called together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from memfit.running.engine.patching import replaced, when_imported

_ARGUMENTS = 7
"""A kernel takes no further loops once it has more arguments. AdamW's loop has eight, for one parameter."""


@contextmanager
def for_sessions() -> Iterator[None]:
    """Have inductor compile for a budget for as long as the context is open."""
    with ExitStack() as stack:

        def found(config: ModuleType) -> None:
            stack.enter_context(setting(config, "memory_planning", False))  # one storage for many: all in use, or none
            stack.enter_context(setting(config, "cudagraph_policy", _WithoutGraphs()))

        def found_output(code: ModuleType) -> None:
            if not hasattr(code.config, "cudagraph_policy"):  # before torch 2.13
                for name in ("cudagraph_post_compile", "cudagraph_partition_post_compile"):
                    stack.enter_context(replaced(code, name, _without_graph))

        stack.enter_context(when_imported("torch._inductor.config", found))
        stack.enter_context(when_imported("torch._inductor.output_code", found_output))
        stack.enter_context(kernels_cut())
        yield


@contextmanager
def kernels_cut() -> Iterator[None]:
    """Have inductor put fewer loops into one C++ kernel, whose tensors have to be in memory at once.

    It joins up to 500 arguments' loops: a whole optimizer's. No key of its caches has the limit, so their tag has it.
    (What it joins in Triton stays: there a loop by itself gives other bits, as an H100 has shown.)
    """
    with ExitStack() as stack:

        def found_scheduling(cpp: ModuleType) -> None:
            scheduling: Any = getattr(cpp, "CppScheduling", None)
            if hasattr(scheduling, "MAX_FUSED_KERNEL_ARGS_NUM"):
                stack.enter_context(replaced(scheduling, "MAX_FUSED_KERNEL_ARGS_NUM", _ARGUMENTS))

        def found_config(config: ModuleType) -> None:
            mine, tag = f";kernels of {_ARGUMENTS} arguments", str(getattr(config, "cache_key_tag", ""))
            stack.enter_context(setting(config, "cache_key_tag", tag.removesuffix(mine) + mine))

        stack.enter_context(when_imported("torch._inductor.codegen.cpp", found_scheduling))
        stack.enter_context(when_imported("torch.compiler.config", found_config))
        yield


@contextmanager
def setting(config: Any, name: str, value: Any) -> Iterator[None]:
    """Set one of torch's settings, if there is one of the name, for as long as the context is open."""
    if not hasattr(config, name):
        yield
        return
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)


def _without_graph(inputs: Any, compiled: Any, made: Any, *_: Any) -> None:
    """Leave a compiled function as it is, and say that no CUDA graph was made of it."""
    made.value = False


class _WithoutGraphs:
    """A policy of inductor's by which no CUDA graph is made (`mode="reduce-overhead"`): graphs keep addresses."""

    def should_wrap(self, _: Any) -> bool:
        return False

    def cudagraphify(self, model: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return model

    def wrap_output(self, output: Any) -> Any:
        return output

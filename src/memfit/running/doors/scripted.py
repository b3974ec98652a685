"""TorchScript writes a module's tensors from C++: they are all brought in for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import answered, held

_MODULES = ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile", "dump", "dump_to_str")
_FUNCTIONS = ("save", "save_to_buffer")


@contextmanager
def modules_held(engine: EngineModule) -> Iterator[None]:
    """Have the tensors of a module in memory while TorchScript writes it."""
    doors: list[tuple[Any, str]] = [(torch._C.ScriptModule, name) for name in _MODULES]
    doors += [(torch._C.ScriptFunction, name) for name in _FUNCTIONS]
    doors += [
        (torch._C.ScriptModuleSerializer, "serialize"),
        (torch._C, "_pickle_save"),
        (torch._C, "_save_parameters"),
    ]
    with ExitStack() as stack:
        for owner, name in doors:
            stack.enter_context(answered(engine, owner, name, lambda original: _writing(engine, original)))
        yield


def _writing(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    def writing(*args: Any, **kwargs: Any) -> Any:
        with held(engine, [tensor for value in tree_leaves((args, kwargs)) for tensor in _tensors(engine, value)]):
            return original(*args, **kwargs)

    return writing


def _tensors(engine: EngineModule, value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch._C.ScriptModule):
        yield from engine.script_tensors(value)
        for graph in _graphs(value):
            yield from _constants(graph)
    elif isinstance(value, torch._C.ScriptFunction):
        yield from _constants(value.graph)


def _graphs(module: Any) -> Iterator[Any]:
    for name in module._method_names():
        yield module._get_method(name).graph
    for _, inner in torch._C.ModuleDict(module).items():
        yield from _graphs(inner)


def _constants(block: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that are part of the code, as freezing and tracing leave them."""
    for node in block.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
        for inner in node.blocks():
            yield from _constants(inner)

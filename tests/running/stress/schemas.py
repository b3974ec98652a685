"""Samples of torch's composite operators and factories, with arguments made up by their schemas.

The other samples are of what Python has names for. A composite runs as calls of other operators, whose results may be
made again; a factory makes what whoever has called it may fill. Arguments that an operator refuses are compared too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from running.stress.samples import Group, Sample

KERNELS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
# What stops, waits for, or asks for the process, a file or another device; and what tells addresses or times.
LEFT_OUT = re.compile(
    r"aten::(_?cuda|_?cudnn|_?mps|_?nested|_?use_cud|_?has_c|from_file|record_stream|_pin|pin_memory|is_pinned|_debug|_print|"
    r"_assert|data$|_?backward$|_test|_unsafe_view|set_data|_dimI|_dimV|_version|output_nr|empty|new_empty|resize|_resize|"
    r"_empty|is_set_to|_is_all|_fw_primal|_make_dual|_local_scalar|item|_dirichlet|manual|_sync|_async|_linalg_check)"
)


def floats(*sizes: int) -> torch.Tensor:
    """Return numbers between -1 and 1, none of which a generator has to draw."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float32).sin()).reshape(sizes)


def longs(*sizes: int) -> torch.Tensor:
    """Return small integers."""
    return (torch.arange(torch.Size(sizes).numel()) % 3).reshape(sizes)


# The tensors of a sample: one kind for all of its arguments.
TENSORS: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: floats(4, 4),
    lambda: longs(6),
    lambda: floats(2, 4, 6, 6),
    lambda: floats(3, 4, 5),
)


def state() -> torch.Tensor:
    """Return a table of a Sobol engine."""
    return torch.ones(5, 30, dtype=torch.long) * 3


def triangles() -> torch.Tensor:
    """Return lower triangles of bits."""
    return torch.ones(5, 30, 30, dtype=torch.long).tril()


# Of those whose arguments no rule finds.
OWN: dict[str, Callable[[], list[Any]]] = {
    "aten::_sobol_engine_draw": lambda: [torch.arange(5) * 3, 6, state(), 5, 0, None],
    "aten::_sobol_engine_ff_": lambda: [torch.arange(5) * 3, 6, state(), 5, 0],
    "aten::_sobol_engine_initialize_state_": lambda: [state() * 0, 5],
    "aten::_sobol_engine_scramble_": lambda: [state(), triangles(), 5],
}


@cache
def schemas() -> dict[str, Any]:
    """Return the schemas of torch's own composites and factories, by name and overload."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if not schema.name.startswith("aten::") or LEFT_OUT.match(schema.name):
            continue
        if torch._C._dispatch_has_kernel(name) and is_wanted(name, schema):
            found[name] = schema
    return found


def is_wanted(name: str, schema: Any) -> bool:
    """Return whether it is a composite, or takes no tensor and makes one."""
    takes = any("Tensor" in str(argument.type) for argument in schema.arguments)
    makes = any("Tensor" in str(result.type) for result in schema.returns)
    composite = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, kernel) for kernel in KERNELS)
    return makes and (composite or not takes)


def groups() -> Iterator[Group]:
    """Yield a group for each."""
    for name in sorted(schemas()):
        yield Group(f"schema {name}", partial(samples, name))


def samples(name: str) -> Iterator[Sample]:
    """Yield samples of an operator: its own arguments, or one for each kind of tensor."""
    if name in OWN:
        yield called(name, OWN[name]())
        return
    schema = schemas()[name]
    takes = any("Tensor" in str(argument.type) for argument in schema.arguments)
    for tensor in TENSORS if takes else TENSORS[:1]:
        yield called(name, [made_up(argument, tensor) for argument in schema.arguments])


def called(name: str, arguments: list[Any]) -> Sample:
    """Return the sample that calls it, and looks at its arguments afterwards."""
    schema = schemas()[name]
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
    overload = getattr(packet, schema.overload_name or "default")
    named = {arg.name: value for arg, value in zip(schema.arguments, arguments, strict=False) if arg.kwarg_only}
    plain = arguments[: len(arguments) - len(named)]
    return Sample({"call": lambda: overload(*plain, **named), "arguments": lambda: [*plain, *named.values()]})


def made_up(argument: Any, tensor: Callable[[], torch.Tensor]) -> Any:
    """Return something of an argument's type; its default, if it has one."""
    if argument.has_default_value():
        return argument.default_value
    kind = str(argument.type)
    if kind.startswith("Optional"):
        return tensor() if "Tensor" in kind and "List" not in kind else None
    if kind.startswith("List"):
        return [tensor(), tensor()] if "Tensor" in kind else [1.0, 2.0] if "float" in kind else [2, 2]
    return {"Tensor": tensor, "float": lambda: 0.5, "bool": lambda: True, "str": lambda: "mean"}.get(kind, lambda: 2)()

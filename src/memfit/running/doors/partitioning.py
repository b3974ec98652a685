"""What `torch.compile` keeps of a forward pass for its backward pass: what takes longer to make again than to copy.

Torch's partitioner asks a solver which values of those that it would keep may be made again. It asks a solver of one's
own where its budget for activations is less than all of them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from memfit.errors import UsageError
from memfit.planning import partition
from memfit.planning.partition import Speeds, Value, cheapest
from memfit.running.doors.compiling import setting
from memfit.running.engine.patching import replaced, when_imported
from memfit.shapes import Shapes, Tensor
from memfit.tracing.roofline import Accelerator

_LEAST = 1e-9  # of what torch would keep: it asks as long as that is not reached
_GIVEN = 4096  # for a size that is not known when the graph is made

_DTYPES = {
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


@contextmanager
def recomputed(speeds: Speeds) -> Iterator[None]:
    """Have graphs that are compiled while the context is open keep what costs least on a machine of these speeds.

    Raises UsageError from the first compilation if torch's partitioner takes no solver.
    """
    with ExitStack() as stack:

        def found(partitioners: ModuleType) -> None:
            base = getattr(partitioners, "CustomKnapsackSolver", None)
            if base is None:
                raise UsageError(
                    f"torch {torch.__version__} does not let memfit choose what a compiled pass keeps",
                    why="its partitioner takes no solver of one's own",
                    remedy="leave out --partition, or update torch",
                )
            config: Any = partitioners.config
            stack.enter_context(setting(config, "activation_memory_budget", _LEAST))
            stack.enter_context(setting(config, "activation_memory_budget_solver", _solver_of(base, speeds)))
            # Torch's own estimate of each op is for its own solvers.
            stack.enter_context(setting(config, "activation_memory_budget_runtime_estimator", "testing"))
            choose = partitioners.choose_saved_values_set
            stack.enter_context(replaced(partitioners, "choose_saved_values_set", _once_each(partitioners, choose)))

        stack.enter_context(when_imported("torch._functorch.partitioners", found))
        yield


def _once_each(partitioners: Any, choose: Callable[..., list[fx.Node]]) -> Callable[..., list[fx.Node]]:
    """Keep what would not be the same again.

    Where its budget is less than all, torch makes some random numbers anew (those of `aten.rand`): a mask of dropout
    would not be that of the forward pass.
    """

    @functools.wraps(choose)
    def chosen(joint_graph: fx.Graph, info: Any, *args: Any, **kwargs: Any) -> list[fx.Node]:
        for node in info.required_fw_nodes:
            is_repeated = _is_repeatable(node) or partitioners.must_recompute(node)  # (a checkpoint's, with its seeds)
            if node.op == "call_function" and not is_repeated:
                node.meta["recompute"] = partitioners.CheckpointPolicy.MUST_SAVE
        return choose(joint_graph, info, *args, **kwargs)

    return chosen


def _solver_of(base: Any, speeds: Speeds) -> Any:
    """Return the solver, of a class that torch knows once its compiler is imported."""

    class Solver(base):  # type: ignore[misc]
        def __call__(
            self,
            memory: list[float],
            joint_graph: fx.Graph,
            max_memory: float,
            info: Any,
            candidates: list[fx.Node],
        ) -> tuple[list[int], list[int]]:
            again = made_again(info, speeds)
            kept, chosen = ([i for i, node in enumerate(candidates) if (node in again) is way] for way in (False, True))
            return kept, chosen

        def uuid(self) -> Any:
            """Return what keys torch's caches of compiled graphs: whatever decides."""
            return (*(Path(file).read_text() for file in (__file__, partition.__file__)), speeds.as_tuple())

    return Solver()


def made_again(info: Any, speeds: Speeds) -> set[fx.Node]:
    """Return the nodes of a forward pass that are made again in the backward pass where that is cheapest.

    `info` is torch's `NodeInfo`. Of what torch does not leave to the solver, it makes views and what is small again.
    """
    nodes: list[fx.Node] = info.required_fw_nodes
    at = {node: index for index, node in enumerate(nodes)}
    there, machine = set(info.inputs), _roofline(speeds)
    values = [
        Value(
            inputs=tuple(at[each] for each in node.all_input_nodes if each in at),
            kept_us=0.0 if node in there else 1e6 * _size_bytes(node) / speeds.tier_bytes_per_s,
            again_us=_again_us(node, machine) if _is_repeatable(node) else math.inf,
            is_wanted=any(info.is_required_bw(user) for user in node.users),
            is_joined=_is_joined(node),
        )
        for node in nodes
    ]
    return {nodes[index] for index in cheapest(values)}


def _is_repeatable(node: fx.Node) -> bool:
    """Whether the node's op is torch's own and gives the same bits again. (A seed that it is given is a value.)"""
    target = node.target
    if target is operator.getitem:
        return True
    is_own = isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims")
    return is_own and torch.Tag.nondeterministic_seeded not in target.tags  # type: ignore[union-attr]


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or getattr(node.target, "is_view", False)


def _is_joined(node: fx.Node) -> bool:
    """Whether Inductor joins it with the kernels that read it: it is elementwise, or a view."""
    return _is_view(node) or torch.Tag.pointwise in getattr(node.target, "tags", ())


def _again_us(node: fx.Node, machine: Accelerator) -> float:
    if _is_view(node):
        return 0.0
    outputs = tuple(_tensors(node))
    inputs = tuple(tensor for each in node.all_input_nodes for tensor in _tensors(each))
    is_joined = _is_joined(node)
    moved = sum(tensor.size_bytes for tensor in (outputs if is_joined else (*inputs, *outputs)))
    return machine.duration_us(_name(node), Shapes(() if is_joined else inputs, outputs), moved, 0)


def _name(node: fx.Node) -> str:
    target: Any = node.target  # an op of torch's own
    return str(target._schema.name)


def _roofline(speeds: Speeds) -> Accelerator:
    return Accelerator(
        "this machine", {"float32": speeds.flops}, speeds.memory_bytes_per_s, launch_us=0.0,
        flops_efficiency=1.0, bandwidth_efficiency=1.0,
    )  # fmt: skip


def _size_bytes(node: fx.Node) -> int:
    return sum(tensor.size_bytes for tensor in _tensors(node))


def _tensors(node: fx.Node) -> Iterator[Tensor]:
    value = node.meta.get("val")
    for each in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(each, torch.Tensor):
            yield Tensor(_DTYPES.get(each.dtype, "Float"), tuple(_known(size) for size in each.shape))


def _known(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else _GIVEN

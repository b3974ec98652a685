"""The samples of torch's operators (op_db and its like): forward, backward, in place, out=, batched, transformed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as known
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_leaves, tree_map

from running.stress.samples import Group, Sample

OTHER_DTYPES = (torch.complex64, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.uint8, torch.complex128)
LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
THOROUGH = 4  # samples of a group that get every part
SMALL = 24  # elements of an input whose whole jacobian is wanted


def groups() -> Iterator[Group]:
    """Yield all groups of operators."""
    foreach = (getattr(known, f"foreach_{kind}_op_db") for kind in ("unary", "binary", "pointwise", "reduce", "other"))
    for op in (*known.op_db, *(op for database in foreach for op in database)):
        for dtype in dtypes_of(op):
            yield Group(f"{op.formatted_name} {short(dtype)}", partial(dense, op, dtype))
    for op in known.op_db:
        for layout in LAYOUTS:
            if op.supports_sparse_layout(getattr(torch, layout)):
                yield Group(f"{op.formatted_name} {layout}", partial(of_layout, op, layout))
    for op in njt_op_db:
        if torch.float32 in op.supported_dtypes("cpu") and op.name != "to":
            yield Group(f"{op.formatted_name} jagged", partial(dense, op, torch.float32))


def short(dtype: torch.dtype) -> str:
    """Return "float32"."""
    return str(dtype).removeprefix("torch.")


def dtypes_of(op: Any) -> list[torch.dtype]:
    """Return float32 and one other that `op` supports, by its name."""
    supported = op.supported_dtypes("cpu")
    others = [dtype for dtype in OTHER_DTYPES if dtype in supported]
    chosen = [torch.float32] if torch.float32 in supported else []
    return chosen + ([others[zlib.crc32(op.formatted_name.encode()) % len(others)]] if others else [])


def wants_grad(op: Any, dtype: torch.dtype) -> bool:
    """Return whether `op` has a backward pass in `dtype`."""
    return bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))


def dense(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield the samples of an operator on dense or jagged tensors."""
    return exercised(op, op.sample_inputs("cpu", dtype, requires_grad=wants_grad(op, dtype)))


def of_layout(op: Any, layout: str) -> Iterator[Sample]:
    """Yield the samples of an operator on sparse tensors."""
    make = getattr(op, f"sample_inputs_{layout}")
    return exercised(op, make("cpu", torch.float32, requires_grad=wants_grad(op, torch.float32)))


def exercised(op: Any, inputs: Iterable[Any]) -> Iterator[Sample]:
    """Yield a sample for every one of torch's."""
    for index, sample in enumerate(inputs):
        yield Use(op, sample).sample(thorough=index < THOROUGH)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def copied(value: Any) -> Any:
    """Return copies of all tensors, which need no gradients."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def differentiable(value: Any) -> list[torch.Tensor]:
    """Return the tensors with a gradient."""
    return [tensor for tensor in tensors(value) if tensor.requires_grad]


def direction(tensor: torch.Tensor) -> torch.Tensor:
    """Return something of a tensor's shape and dtype to be a gradient or tangent."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or not (tensor.is_floating_point() or tensor.is_complex())
    ):
        return torch.ones_like(tensor.detach())
    return torch.randn(tensor.shape, dtype=torch.float32).to(tensor.dtype)


class Use:
    """One sample of an operator, and what can be done with it."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op, self.given = op, sample
        self.all = (sample.input, sample.args, sample.kwargs)
        self.results: list[torch.Tensor] = []

    def sample(self, thorough: bool) -> Sample:
        """Return the parts; what changes nothing that is left comes first."""
        parts: dict[str, Callable[[], Any]] = {"forward": self.forward, "backward": self.backward}
        if thorough:
            parts |= {"batched backward": self.batched, "second backward": self.second, "out=": self.out}
            parts |= {
                "vmap": self.mapped,
                "jvp": self.jvp,
                "jacrev": self.jacrev,
                "vmap in place": self.mapped_in_place,
            }
        parts |= {"in place": self.in_place, "inputs": lambda: self.all}
        return Sample(parts)

    def call(self, value: Any) -> Any:
        """Return the operator's result on `value` and the other arguments."""
        return self.op(value, *self.given.args, **self.given.kwargs)

    def forward(self) -> Any:
        """Run it, and remember what can be differentiated."""
        out = self.call(self.given.input)
        self.results = differentiable(self.given.output_process_fn_grad(out))
        return out

    def gradients(self, outputs: list[torch.Tensor], **options: Any) -> Any:
        """Return the gradients of the inputs, None where there is none."""
        leaves = differentiable(self.all)
        if not outputs or not leaves:
            return ()
        given = [direction(out) for out in outputs]
        if options.get("is_grads_batched"):
            given = [torch.stack([one, one * 2]) for one in given]
        return torch.autograd.grad(outputs, leaves, given, allow_unused=True, retain_graph=True, **options)

    def backward(self) -> Any:
        """Differentiate once."""
        return self.gradients(self.results)

    def batched(self) -> Any:
        """Differentiate in two directions at once, by vmap."""
        return self.gradients(self.results, is_grads_batched=True)

    def second(self) -> Any:
        """Differentiate the gradients."""
        once = differentiable(self.gradients(self.results, create_graph=True))
        return self.gradients(once)

    def in_place(self) -> Any:
        """Run the variant that writes to its input."""
        variant = self.op.inplace_variant
        if variant is None:
            return ()
        value, args, kwargs = copied(self.all)
        return variant(value, *args, **kwargs), value

    def out(self) -> Any:
        """Run it with `out=`."""
        if not self.op.supports_out:
            return ()
        value, args, kwargs = copied(self.all)
        out = tree_map(torch.zeros_like, self.op(value, *args, **kwargs))
        self.op(value, *args, **kwargs, out=out)
        return out

    def mapped(self) -> Any:
        """Run it by vmap over two copies of its first input."""
        return self.over_two(self.call)

    def mapped_in_place(self) -> Any:
        """Run the variant that writes to its input by vmap."""
        variant = self.op.inplace_variant
        if variant is None:
            return ()
        _, args, kwargs = copied(self.all)
        return self.over_two(lambda value: variant(value, *args, **kwargs))

    def over_two(self, function: Callable[[Any], Any]) -> Any:
        """Return `function` of two copies of the input, by vmap, and what has become of them."""
        both = tree_map(lambda leaf: torch.stack([leaf, leaf]), copied(self.given.input))
        return torch.func.vmap(function, randomness="different")(both), both

    def jvp(self) -> Any:
        """Differentiate forwards."""
        value = self.given.input
        if not isinstance(value, torch.Tensor) or not self.op.supports_forward_ad:
            return ()
        return torch.func.jvp(self.call, (copied(value),), (direction(value),))

    def jacrev(self) -> Any:
        """Differentiate in all directions."""
        value = self.given.input
        if not isinstance(value, torch.Tensor) or value.is_nested or value.numel() > SMALL or not self.results:
            return ()
        return torch.func.jacrev(self.call)(copied(value))

"""In which surroundings a layer of a random training runs, or a whole step of it.

CONTEXTS are entered around it, with the step's `Seen` for what they are to read out. CALLS call it in their own way.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
Inner = Callable[[Tensor], Tensor]


class Counting(TorchDispatchMode):
    """Lets every op through, and reads out how many there were."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self._seen, self._ops = seen, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._ops += 1
        return func(*args, **(kwargs or {}))

    def __exit__(self, *about: Any) -> None:
        self._seen.append(self._ops)
        super().__exit__(*about)


class Replacing(TorchDispatchMode):
    """Computes some ops by others."""

    def __init__(self) -> None:
        super().__init__()
        self._others = {
            aten.gelu.default: lambda x, **_: x * torch.sigmoid(1.702 * x),
            aten.tanh.default: lambda x: x / (1 + x.abs()),
            aten.sin.default: lambda x: x.cos() * 0.5,
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._others.get(func, func)(*args, **(kwargs or {}))


class Reading(TorchDispatchMode):
    """Reads out a number of the results of some ops."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (aten.mul.Tensor, aten.gelu.default, aten.add.Tensor) and isinstance(result, Tensor):
            self._seen.append(repr(result.sum().item()))
        return result


class Passing(TorchFunctionMode):
    """Lets every function through."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Approximate(TorchFunctionMode):
    """Computes some functions by others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.gelu:
            return F.gelu(args[0], approximate="tanh")
        return torch.erf(*args) if func is torch.tanh else func(*args, **(kwargs or {}))


class Traced(Tensor):
    """A subclass that adds nothing, by __torch_function__."""


class Wrapper(Tensor):
    """A subclass around a tensor, by __torch_dispatch__."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        about = {"dtype": inner.dtype, "strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, inner.shape, **about)  # type: ignore[no-any-return, attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner_args, inner_kwargs = tree_map(bare, (args, kwargs or {}))
        result = func(*inner_args, **inner_kwargs)
        if func._schema.is_mutable and isinstance(args[0], Wrapper) and result is inner_args[0]:
            return args[0]
        return tree_map(lambda value: Wrapper(value) if isinstance(value, Tensor) else value, result)


def bare(value: Any) -> Any:
    """Return what a wrapper is around."""
    return value.inner if isinstance(value, Wrapper) else value


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Wrapper(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return bare(gradient)


class Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return bare(x).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Wrapper(gradient)


class ByHand(torch.autograd.Function):
    """Runs a function again for its gradient, as a reentrant checkpoint does, by hand."""

    @staticmethod
    def forward(ctx: Any, inner: Inner, x: Tensor) -> Tensor:
        ctx.inner, ctx.state = inner, torch.get_rng_state()
        ctx.save_for_backward(x)
        return inner(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            torch.autograd.backward(ctx.inner(x), gradient)
        return None, x.grad


# Saved-tensor hooks


def to_bytes(tensor: Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor.detach(), file)
    return file.getvalue()


def narrow(tensor: Tensor) -> tuple[torch.dtype, Tensor]:
    return tensor.dtype, tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def to_numpy(tensor: Tensor) -> tuple[torch.dtype, np.ndarray]:
    widened = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
    return tensor.dtype, np.array(widened)


def from_numpy(packed: tuple[torch.dtype, np.ndarray]) -> Tensor:
    return torch.from_numpy(packed[1]).to(packed[0])


def kept_by_address() -> AbstractContextManager[None]:
    """Save each storage once, known by its address, which stays its own as long as it is kept."""
    known: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Any:
        if isinstance(tensor, Wrapper):
            return tensor
        storage = tensor.untyped_storage()
        known.setdefault(storage.data_ptr(), storage)
        return storage.data_ptr(), tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        address, dtype, *where = packed
        return torch.empty(0, dtype=dtype).set_(known[address], *where)

    return saved_tensors_hooks(pack, unpack)


def looked_up_by_address() -> AbstractContextManager[None]:
    """Save each tensor in a table by its address."""
    table: dict[tuple[Any, ...], Tensor] = {}

    def pack(tensor: Tensor) -> tuple[Any, ...]:
        address = id(tensor) if isinstance(tensor, Wrapper) else tensor.data_ptr()
        key = (address, tensor.dtype, tensor.size(), tensor.stride())
        table.setdefault(key, tensor.detach())
        return key

    return saved_tensors_hooks(pack, table.__getitem__)


# Settings of a thread or a process


@contextmanager
def changed(put: Callable[[Any], object], get: Callable[[], Any], value: object) -> Iterator[None]:
    """Have a setting for a while."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    return changed(torch.set_default_dtype, torch.get_default_dtype, dtype)


def deterministic() -> AbstractContextManager[None]:
    return changed(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True)


@contextmanager
def flushed() -> Iterator[None]:
    """Take numbers that are too small for their exponent for zero."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def seeded() -> Iterator[None]:
    """Have random numbers that do not follow from those before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        yield


Seen = list[Any]
CONTEXTS: dict[str, Callable[[Seen], AbstractContextManager[Any]]] = {
    "": lambda seen: contextlib.nullcontext(),
    "hooks": lambda seen: saved_tensors_hooks(lambda t: t, lambda t: t),
    "hooks that clone": lambda seen: saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t),
    "hooks that clone late": lambda seen: saved_tensors_hooks(lambda t: t.detach(), torch.clone),
    "hooks that narrow": lambda seen: saved_tensors_hooks(narrow, lambda packed: packed[1].to(packed[0])),
    "hooks that pickle": lambda seen: saved_tensors_hooks(lambda t: pickle.dumps(t.detach()), pickle.loads),
    "hooks that save": lambda seen: saved_tensors_hooks(
        to_bytes, lambda data: torch.load(io.BytesIO(data), weights_only=False)
    ),
    "hooks to NumPy": lambda seen: saved_tensors_hooks(
        to_numpy, lambda packed: torch.from_numpy(packed[1]).to(packed[0])
    ),
    "hooks by address": lambda seen: kept_by_address(),
    "hooks by table": lambda seen: looked_up_by_address(),
    "saved on the CPU": lambda seen: save_on_cpu(),
    "counting mode": Counting,
    "replacing mode": lambda seen: Replacing(),
    "reading mode": Reading,
    "function mode": lambda seen: Passing(),
    "approximate mode": lambda seen: Approximate(),
    "device mode": lambda seen: torch.device("cpu"),
    "autocast": lambda seen: torch.autocast("cpu", torch.bfloat16),
    "autocast without a cache": lambda seen: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "float64 by default": lambda seen: default_dtype(torch.float64),
    "bfloat16 by default": lambda seen: default_dtype(torch.bfloat16),
    "deterministic": lambda seen: deterministic(),
    "no oneDNN": lambda seen: torch.backends.mkldnn.flags(enabled=False),
    "one thread backward": lambda seen: torch.autograd.set_multithreading_enabled(False),
    "flushed": lambda seen: flushed(),
    "seeded": lambda seen: seeded(),
    "anomalies": lambda seen: torch.autograd.set_detect_anomaly(True, check_nan=False),
}


# Ways to call


def twice(inner: Inner, x: Tensor) -> Tensor:
    """Checkpoint what has a checkpoint within."""
    once = functools.partial(checkpoint, inner, use_reentrant=False)
    return checkpoint(lambda value: once(value * 1.0), x, use_reentrant=False)  # type: ignore[no-any-return]


def mixed(inner: Inner, x: Tensor) -> Tensor:
    """Checkpoint in one form what has a checkpoint of the other within."""
    once = functools.partial(checkpoint, inner, use_reentrant=True)
    return checkpoint(lambda value: once(value * 1.0), x, use_reentrant=False)  # type: ignore[no-any-return]


def selective(inner: Inner, x: Tensor) -> Tensor:
    kept = [aten.addmm.default, aten.native_dropout.default, aten.gelu.default]
    context = functools.partial(create_selective_checkpoint_contexts, kept)
    return checkpoint(inner, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def by_policy(inner: Inner, x: Tensor) -> Tensor:
    def policy(about: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        named = op in (aten.mul.Tensor, aten.tanh.default, aten.bmm.default)
        return CheckpointPolicy.MUST_SAVE if named else CheckpointPolicy.PREFER_RECOMPUTE

    context = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(inner, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def hooked(inner: Inner, x: Tensor) -> Tensor:
    y = inner(x * 1.0)
    if y.grad_fn is not None:
        y.register_hook(lambda gradient: gradient * 1.25)
        y.grad_fn.register_prehook(lambda gradients: tuple(g if g is None else g + 0.001 for g in gradients))
    return y * 1.0


def with_gradient(inner: Inner, x: Tensor) -> Tensor:
    """Add a gradient, through which there is another."""
    with torch.enable_grad():
        x = x * 1.0 if x.requires_grad else x.detach().requires_grad_()
        y = inner(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y + gradient * 0.1


def without_gradient(inner: Inner, x: Tensor) -> Tensor:
    with torch.no_grad():
        once = inner(x)
    return inner(x) + once * 0.1


def wrapped(inner: Inner, x: Tensor) -> Tensor:
    return Unwrap.apply(inner(Wrap.apply(x)))  # type: ignore[no-any-return, no-untyped-call]


def traced(inner: Inner, x: Tensor) -> Tensor:
    return inner(x.as_subclass(Traced)).as_subclass(Tensor)  # type: ignore[no-any-return]


def pieces(inner: Inner, x: Tensor) -> Tensor:
    return torch.cat([inner(piece) for piece in x.split((len(x) + 1) // 2)])


def pulled_back(inner: Inner, x: Tensor) -> Tensor:
    y, pull = torch.func.vjp(inner, x)
    return y + pull(torch.ones_like(y))[0] * 0.1  # type: ignore[no-any-return]


CALLS: dict[str, Callable[[Inner, Tensor], Tensor]] = {
    "": lambda inner, x: inner(x),
    "residual": lambda inner, x: x + inner(x) * 0.5,
    "checkpoint": lambda inner, x: checkpoint(inner, x, use_reentrant=False),
    "reentrant checkpoint": lambda inner, x: checkpoint(inner, x, use_reentrant=True),
    "checkpoint without a state": lambda inner, x: checkpoint(inner, x, use_reentrant=False, preserve_rng_state=False),
    "checkpoint to its end": lambda inner, x: checkpoint(inner, x, use_reentrant=False, early_stop=False),
    "checkpoint in a row": lambda inner, x: checkpoint_sequential([inner, torch.tanh], 2, x, use_reentrant=False),
    "nested checkpoints": twice,
    "mixed checkpoints": mixed,
    "selective checkpoint": selective,
    "checkpoint by policy": by_policy,
    "function that runs again": lambda inner, x: ByHand.apply(inner, x),
    "hooked": hooked,
    "with its gradient": with_gradient,
    "without a gradient too": without_gradient,
    "wrapped": wrapped,
    "traced": traced,
    "in pieces": pieces,
    "pulled back": pulled_back,
}
REENTRANT = ("reentrant checkpoint", "mixed checkpoints")

"""A script run without values: parameters, and all that ops make of them, are ghosts, which take no memory or time.

All other tensors are real, so that data is read and sampled as ever, and are recorded as in any session. Where an op
uses one together with a ghost, a ghost stands for it; the recording has the two as one storage (`Twins`). One to which
such an op writes is a ghost from then on, and so is one that a factory makes with very many bytes. A number read from a
ghost is made up: 1.0, 1 or False. torch's fake tensors do this: they know of autocast, and their storages are meta. A
GPU that the script names stands for the CPU, so that none is needed.

Runs as a process of its own (`python -m memfit.running.scripts.ghostly REQUEST`).
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from memfit.errors import InputError, MemfitError
from memfit.files import save_trace
from memfit.ir import Op, Trace
from memfit.messages import say_error
from memfit.running import engine
from memfit.running.engine.patching import replaced
from memfit.running.frames import passing
from memfit.running.scripts.inside import EndOfProgram, run_program
from memfit.running.scripts.script import check_program
from memfit.running.scripts.without_values import ENDED, ON_THE_DEVICE, Request
from memfit.running.session import Session
from memfit.running.session.iterations import WHOLE
from memfit.tracing.ghosts import Twins
from memfit.tracing.roofline import accelerator_named

_NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
_FOREACH = "_foreach_supported_types"  # those that ops on lists take
_GPU = re.compile(r"cuda(:\d+)?")
_READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
_FACTORIES = {torch.empty, torch.full, torch.ones, torch.rand, torch.randint, torch.randn, torch.zeros}
_MANY = 16 << 20  # elements: nobody reads so many one by one


class _Recorded(EndOfProgram):
    """The first whole iteration has been recorded."""


class Ghosts:
    """Makes ghosts of tensors, each once as long as it lives, and notes in `twins` what they stand for.

    `block_id` gives the number of a storage's block in the recording, -1 for one that has none.
    """

    def __init__(self, twins: Twins, block_id: Callable[[Tensor], int]) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.twins = twins
        self._block_id = block_id
        self._of = WeakTensorKeyDictionary()
        self._written, self._moved = _Storages(), _Storages()

    def of(self, tensor: Tensor) -> Tensor:
        """Return the ghost of a tensor of real values, on the same device."""
        known: Tensor | None = self._of.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            with self.mode, torch.no_grad():
                known = torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
                ).requires_grad_(tensor.requires_grad)
            self._of[tensor] = known
            self._stands_for(known, tensor)
        return known

    def fresh(self, tensor: Tensor) -> Tensor:
        """Return a ghost like `tensor` that nothing else uses."""
        with self.mode, torch.no_grad():
            ghost = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        self._stands_for(ghost, tensor)
        return ghost

    def made(self, factory: Any, args: Any, kwargs: Any) -> Tensor:
        """Return what a factory makes, as a ghost."""
        with self.mode:
            ghost: Tensor = factory(*args, **kwargs)
        return ghost

    def wrote(self, tensor: Tensor) -> None:
        """Note that an op has written to the ghost of a real tensor: what its bytes are is no longer known."""
        self._written.add(tensor)

    def is_written(self, tensor: Tensor) -> bool:
        """Return whether that has happened to a real tensor, or to another with the same storage."""
        return tensor in self._written

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a real tensor as it is on the GPU that the script names: a copy, unless it is there already."""
        if tensor in self._moved:
            return tensor
        copy = tensor.clone()
        self._moved.add(copy)
        return copy

    def _stands_for(self, ghost: Tensor, tensor: Tensor) -> None:
        block, real = self._block_id(ghost), self._block_id(tensor)
        if block >= 0 and real >= 0:
            self.twins.real[block] = real


class _Storages:
    """The storages of some tensors, as long as they live."""

    def __init__(self) -> None:
        self._references: set[StorageWeakRef] = set()

    def add(self, tensor: Tensor) -> None:
        self._references = {each for each in self._references if not each.expired()}  # type: ignore[no-untyped-call]
        self._references.add(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def __contains__(self, tensor: Tensor) -> bool:
        if not self._references:
            return False
        return StorageWeakRef(tensor.untyped_storage()) in self._references  # type: ignore[no-untyped-call]


class _Spreading(TorchFunctionMode):
    """Lets ops that use a ghost use ghosts only, and makes up what is read from one."""

    def __init__(self, ghosts: Ghosts) -> None:
        super().__init__()
        self._ghosts = ghosts

    @passing
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = list(_tensors((args, kwargs)))
        has_ghost = any(isinstance(tensor, FakeTensor) or self._is_written(tensor) for tensor in found)
        if has_ghost and func in _READS:
            return _made_up(func, args[0])
        if func is Tensor.__format__ and has_ghost and args[0].dim() == 0:
            return format(_number(args[0].dtype), args[1])
        given = args, kwargs
        args, kwargs = tree_map(self._on_cpu, given)
        if func is Tensor.cuda:
            self._ghosts.twins.on_a_device = True
            return self._moved(args[0])
        if has_ghost:
            return self._spread(func, args, kwargs, found)
        if func in _FACTORIES and not found and _count(args, kwargs) >= _MANY:
            return self._ghosts.made(func, args, kwargs)
        result = func(*args, **kwargs)
        names_gpu = func is Tensor.to and self._ghosts.twins.on_a_device and _names_gpu(given)
        return self._moved(result) if names_gpu and result is args[0] else result

    def _moved(self, tensor: Tensor) -> Tensor:
        return self._ghosts.moved(tensor) if _has_a_ghost(tensor) else tensor

    @passing
    def _spread(self, func: Any, args: Any, kwargs: Any, found: list[Tensor]) -> Any:
        """Run an op on ghosts alone; what it has written of real tensors is known no longer."""
        args, kwargs = tree_map(self._ghost, (args, kwargs))
        ghosts = [(tensor, ghost) for tensor in found if (ghost := self._ghost(tensor)) is not tensor]
        before = [_version(ghost) for _, ghost in ghosts]
        result = func(*args, **kwargs)
        for (tensor, ghost), version in zip(ghosts, before, strict=True):
            if _version(ghost) != version:
                self._ghosts.wrote(tensor)
        return result

    def _ghost(self, value: Any) -> Any:
        return self._ghosts.of(value) if _has_a_ghost(value) else value

    def _is_written(self, tensor: Tensor) -> bool:
        return _has_a_ghost(tensor) and self._ghosts.is_written(tensor)

    def _on_cpu(self, value: Any) -> Any:
        here = _on_cpu(value)
        self._ghosts.twins.on_a_device |= here is not value
        return here


def _has_a_ghost(value: Any) -> bool:
    """Return whether a ghost can stand for a value: it is a real tensor, of more than a number."""
    is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor) and value.layout is torch.strided
    return is_real and value.device.type == "cpu" and not value.is_nested and value.dim() > 0


def _count(args: Any, kwargs: Any) -> int:
    """Return how many elements a factory is asked for."""
    sizes = [size for size in (kwargs.get("size"), *args) if isinstance(size, (tuple, list))]
    size = sizes[0] if sizes else args
    return prod(size) if all(isinstance(part, int) for part in size) else 0


def _names_gpu(given: tuple[Any, Any]) -> bool:
    """Return whether the arguments of `Tensor.to` name a GPU."""
    args, kwargs = given
    return any(_on_cpu(value) is not value for value in (*args, *kwargs.values()))


def _version(ghost: Tensor) -> int:
    return 0 if ghost.is_inference() else ghost._version


class _MadeUp(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers where a number is read from a ghost."""

    @passing
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _number(args[0].dtype)
        return func(*args, **(kwargs or {}))


def _number(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype is torch.bool:
        return False
    return (1.0 if dtype.is_floating_point else 1j) if dtype.is_floating_point or dtype.is_complex else 1


def _made_up(func: Any, ghost: Tensor) -> Any:
    """Return what a read of many numbers gives: `tolist`, or one of NumPy's."""
    number = torch.full((), _number(ghost.dtype), dtype=ghost.dtype)
    if func is Tensor.tolist:
        return number.expand(tuple(ghost.shape)).tolist()
    return np.full(tuple(ghost.shape), number.numpy())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU, which need not be there; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and _GPU.fullmatch(value) else value


@contextmanager
def ghostly(twins: Twins | None = None, block_id: Callable[[Tensor], int] = lambda tensor: -1) -> Iterator[None]:
    """Make ghosts of all parameters and buffers that are made meanwhile, and of what ops make of them.

    `twins` and `block_id` are as of `Ghosts`. Raises InputError where an op cannot do without values, with its line.
    """
    ghosts = Ghosts(twins or Twins(), block_id)
    module: Any = nn.Module
    make, register, begin = nn.Parameter.__new__, module.register_buffer, torch.autocast.__init__

    def parameter(cls: type, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        if isinstance(data, Tensor) and not isinstance(data, FakeTensor):
            data = ghosts.fresh(data)
        return make(cls, data, requires_grad)

    def register_buffer(self: nn.Module, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor):
            tensor = ghosts.fresh(tensor)
        register(self, name, tensor, persistent)

    def autocast(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, _on_cpu(device_type), *args, **kwargs)

    with ExitStack() as changes:
        for owner, name, value in (
            (nn.Parameter, "__new__", staticmethod(parameter)),
            (module, "register_buffer", register_buffer),
            (module, "_apply", _apply),
            (torch.autocast, "__init__", autocast),
            (torch.distributions.Distribution, "_validate_args", False),  # made-up numbers are not valid
            *((owner, _FOREACH, [*getattr(owner, _FOREACH), FakeTensor]) for owner in (_foreach_utils, optimizer)),
        ):
            changes.enter_context(replaced(owner, name, value))
        try:
            with _MadeUp(), _Spreading(ghosts):  # type: ignore[no-untyped-call]
                yield
        except _NO_VALUES as error:
            raise _needs_values(error) from error


def _apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Move or convert a module as torch does, but without exchanging tensors, which ghosts do not allow."""
    for child in self.children() if recurse else ():
        _apply(child, fn)
    for name, old in self._parameters.items():
        if old is not None:
            with torch.no_grad():
                new = fn(old)
            if new is not old:
                self._parameters[name] = nn.Parameter(new, old.requires_grad)
    self._buffers.update({name: fn(buffer) for name, buffer in self._buffers.items() if buffer is not None})
    return self


def _needs_values(error: BaseException) -> InputError:
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))
    ]
    what = str(error).partition("\n")[0] or type(error).__name__
    return InputError(
        f"the script cannot run without values: {what} at {lines[-1] if lines else 'an unknown line'}",
        why="the op's result, or its shape, depends on values, and tensors have none here",
        remedy=ON_THE_DEVICE,
    )


def record(request: Request) -> Trace:
    """Run a script without values; return its first whole iteration, timed by the roofline of an accelerator.

    Raises InputError where the script fails, needs values, or ends before it has repeated an iteration.
    """
    check_program(request.program)
    profile = replace(
        accelerator_named(request.accelerator),
        tf32_products=torch.get_float32_matmul_precision() != "highest",
        tf32_convolutions=torch.backends.cudnn.allow_tf32,
    )
    twins = Twins()
    session = Session(None, "ram", script=str(request.program), accelerator=profile, on_trace=_stop, twins=twins)
    watch = partial(ghostly, twins, lambda tensor: engine.load().block_id(tensor))
    code = run_program(request.program, request.arguments, session, watch)
    if code:
        raise InputError(f"{ENDED} {code}", why="see above", remedy=ON_THE_DEVICE)
    trace = session.recorded
    if trace is None or not trace.storages:
        why = "no iteration ended" if trace is None else "no op used an nn.Parameter"
        raise InputError(
            f"nothing was recorded: {why}",
            why=f"an iteration is whole {WHOLE}, and ops on parameters are recorded",
            remedy="let it run two steps or more, and keep what is trained in nn.Parameter; or " + ON_THE_DEVICE,
        )
    return replace(trace, ops=tuple(_without_views(op) for op in trace.ops))


def _stop() -> None:
    raise _Recorded


def _without_views(op: Op) -> Op:
    """Return `op` as it is on a device: one that makes a view reads nothing, though making a ghost of it does."""
    if op.writes or not op.reads or not _makes_a_view(op.name):
        return op
    return replace(op, reads=(), duration_us=0.0)


def _makes_a_view(name: str) -> bool:
    operator, _, overload = name.partition(".")
    schemas = [s for s in torch._C._jit_get_schemas_for_operator(operator) if s.overload_name == overload]
    infos = [argument.alias_info for schema in schemas for argument in schema.arguments if argument.alias_info]
    return bool(infos) and not any(info.is_write for info in infos)


def main() -> int:
    """Read a request as JSON from the command line, record, and write the trace."""
    request = Request(**json.loads(sys.argv[1]))
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # a guard asks, and gets 0
    try:
        save_trace(record(request), request.output)
    except MemfitError as error:
        say_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The doors to a storage that are not ops: each brings the bytes in first.

An op is seen by the engine. `numpy()`, `tolist()`, pickling and the like are not, and would meet a storage
without bytes; they are answered here while a session is active. Where raw memory escapes (numpy, DLPack,
`data_ptr`) the storage stays where it is from then on, since its address is known outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary

from memfit.running.doors import (
    addresses,
    compiled,
    compiling,
    distributed,
    extensions,
    kernels,
    launches,
    profiling,
    scripted,
)
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import answered, has_storage, held
from memfit.running.frames import unseen

# (owner, names): calls whose first argument is the tensor or storage, and from which raw memory escapes.
_ESCAPES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch.Tensor, ("const_data_ptr", "mutable_data_ptr")),
    (torch._C, ("_data_address",)),
)
# (owner, names, indices): calls that read or write bytes of these arguments, and keep no address.
_USES: tuple[tuple[Any, tuple[str, ...], tuple[int, ...]], ...] = (
    (torch.Tensor, ("apply_",), (0,)),
    (torch.Tensor, ("map_",), (0, 1)),
    (torch.Tensor, ("map2_",), (0, 1, 2)),
    (
        torch.UntypedStorage,
        (
            "tolist",
            "__setitem__",
            "fill_",
            "_share_filename_cpu_",
            "_share_fd_cpu_",
            "_share_cuda_",
            "_write_file",
            "_set_from_file",
            "is_shared",  # reads the pointer in a noexcept function: the guard's error would end the process
            "_get_filename",
            "_get_shared_fd",
            "_shared_incref",
            "_shared_decref",
            "_byteswap",
        ),
        (0,),
    ),
    (torch.UntypedStorage, ("copy_", "_swap_data_ptr_"), (0, 1)),
    (torch._C, ("_overlaps",), (0, 1)),
    (torch._C.PyTorchFileWriter, ("write_record",), (2,)),
    (torch.Generator, ("set_state",), (1,)),
)


@contextmanager
def installed(engine: EngineModule) -> Iterator[None]:
    """Answer at every door for as long as the context is open."""
    with ExitStack() as stack:
        for owner, name, door in _doors(engine):
            stack.enter_context(answered(engine, owner, name, door))
        stack.enter_context(_exchange_watched(engine))
        stack.enter_context(addresses.readers_held(engine))
        stack.enter_context(scripted.modules_held(engine))
        stack.enter_context(compiling.for_sessions())
        stack.enter_context(compiled.kernels_seen(engine))
        stack.enter_context(extensions.calls_seen(engine))
        stack.enter_context(kernels.registrations_seen(engine))
        stack.enter_context(distributed.collectives_seen(engine))
        stack.enter_context(launches.launches_seen(engine))
        stack.enter_context(profiling.calls_unnamed(engine))
        yield


_Door = Callable[[Any], Any]  # from what torch does to what is done in a session


def _doors(engine: EngineModule) -> Iterator[tuple[Any, str, _Door]]:
    for owner, names in _ESCAPES:
        for name in names:
            yield owner, name, partial(_escaping, engine)
    for owner, names, indices in _USES:
        for name in names:
            yield owner, name, partial(_using, engine, indices)
    yield torch.Tensor, "tolist", partial(_listing, engine)
    yield torch.Tensor, "numpy", partial(_viewing, engine)
    yield torch.Tensor, "__array__", partial(_as_array, engine)
    for owner in (torch.Tensor, torch.UntypedStorage):
        yield owner, "data_ptr", partial(addresses.data_ptr, engine)
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        yield torch._C, name, partial(_exporting, engine)
    yield torch.UntypedStorage, "__getitem__", partial(_getting, engine)
    yield torch.UntypedStorage, "resize_", partial(_resizing, engine)
    yield torch._C, "_is_alias_of", partial(_comparing, engine)


def _escaping(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    def escaping(target: Any, *args: Any, **kwargs: Any) -> Any:
        with held(engine, target, pin=True):
            return original(target, *args, **kwargs)

    return escaping


def _using(engine: EngineModule, indices: tuple[int, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    def using(*args: Any, **kwargs: Any) -> Any:
        # By keyword, what is held besides the one that is meant does no harm.
        targets = [args[index] for index in indices if index < len(args)] + list(kwargs.values())
        with held(engine, targets):
            return original(*args, **kwargs)

    return using


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Conjugates and negatives are worked out here, where the result can be held.

    In C++ the engine would not see it. Modes of functions do not see it there, so that they may not see it here.
    """
    with torch._C.DisableTorchFunction():
        return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def _listing(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    def listing(tensor: torch.Tensor) -> Any:
        tensor = _resolved(tensor)
        with held(engine, tensor):
            return original(tensor)

    return listing


def _viewing(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    def viewing(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if force:
            with unseen():
                tensor = tensor.detach()
            tensor = _resolved(tensor)
        with held(engine, tensor, pin=True):
            return original(tensor, force=force)

    return viewing


def _as_array(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    """A copy for numpy (`np.array`) is made here: of one that numpy makes by itself the address would have escaped."""

    def as_array(tensor: torch.Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
        if not copy:
            return original(tensor, dtype)
        import numpy as np

        if not _has_plain_bytes(tensor) or not engine.may_leave(tensor):
            return np.array(original(tensor, dtype))
        tensor = tensor.detach()  # the one op of `original`
        with unseen():
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
            strides = [stride * tensor.element_size() for stride in tensor.stride()]
            alike = np.lib.stride_tricks.as_strided(np.empty(1, kind), tensor.shape, strides)  # never read
            made = np.empty_like(alike, dtype)  # laid out as numpy's own copy: what is computed of it depends on that
            axes = sorted(range(tensor.dim()), key=lambda axis: -made.strides[axis])
            turned = tensor.permute(axes)
            made.transpose(axes)[...] = addresses.copied(engine, turned.contiguous()).view(kind).reshape(turned.shape)
        return made

    return as_array


def _has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its storage's bytes, which numpy may have, and no subclass has a say in it."""
    if has_torch_function_unary(tensor):  # never true within `unseen`
        return False
    with unseen():
        is_more = tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
        return not is_more and tensor.device.type == "cpu" and has_storage(tensor) and tensor.numel() > 0


def _exporting(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    """A copy is made here, where it can be pinned: one made in C++ would be exported unseen."""

    def exporting(
        tensor: torch.Tensor, *args: Any, dl_device: Any = None, copy: bool | None = None, **kwargs: Any
    ) -> Any:
        if copy and has_storage(tensor):
            here = dl_device is None or tuple(dl_device) == tuple(torch._C._torchDeviceToDLDevice(tensor.device))
            tensor, copy = tensor.clone() if here else tensor, None if here else copy
        with held(engine, tensor, pin=True):
            return original(tensor, *args, dl_device=dl_device, copy=copy, **kwargs)

    return exporting


def _getting(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    """A slice is another storage on the same address."""

    def getting(storage: torch.UntypedStorage, index: Any) -> Any:
        with held(engine, storage, pin=isinstance(index, slice)):
            return original(storage, index)

    return getting


def _resizing(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing comes in only to be thrown away (FSDP frees what it has gathered so)."""

    def resizing(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if args == (0,) and has_storage(storage) and engine.drop_bytes(storage):
            return original(storage, 0)
        with held(engine, storage):
            return original(storage, *args, **kwargs)

    return resizing


def _comparing(engine: EngineModule, original: Callable[..., Any]) -> Callable[..., Any]:
    """A storage whose bytes are away shares them with no other."""

    def comparing(a: Any, b: Any) -> bool:
        if all(has_storage(t) for t in (a, b)) and not (engine.is_resident(a) and engine.is_resident(b)):
            with unseen():
                return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
        return bool(original(a, b))

    return comparing


@contextmanager
def _exchange_watched(engine: EngineModule) -> Iterator[None]:
    """Pin what other C libraries take by DLPack's table of functions, which they may have read long ago."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        yield
        return
    engine.watch_exchange(table, True)
    try:
        yield
    finally:
        engine.watch_exchange(table, False)

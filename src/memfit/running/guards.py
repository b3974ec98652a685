"""The doors to a storage that are not ops: each brings the bytes in first.

An op is seen by the engine. `numpy()`, `tolist()`, pickling and the like are not, and would meet a storage
without bytes; they are wrapped while a session is active. Where raw memory escapes (numpy, DLPack,
`data_ptr`) the storage stays where it is from then on, since its address is known outside.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack

# (owner, names): calls whose first argument is the tensor or storage.
_ESCAPES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch.Tensor, ("numpy", "data_ptr", "const_data_ptr", "mutable_data_ptr", "__dlpack__")),
    (torch.UntypedStorage, ("data_ptr",)),
    (torch._C, ("_to_dlpack", "_to_dlpack_versioned")),
    (torch, ("to_dlpack",)),
    (torch.utils.dlpack, ("to_dlpack",)),
)
_READS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch.Tensor, ("tolist", "share_memory_", "__reduce_ex__", "apply_", "map_", "map2_")),
    (
        torch.UntypedStorage,
        (
            "tolist",
            "__getitem__",
            "__setitem__",
            "fill_",
            "byteswap",
            "resize_",
            "_share_filename_cpu_",
            "_share_fd_cpu_",
            "_share_cuda_",
            "_write_file",
            "_set_from_file",
            "is_shared",  # reads the pointer in a noexcept function: the guard's error would end the process
            "_get_filename",
            "_get_shared_fd",
            "_swap_data_ptr_",
            "_byteswap",
            "__reduce__",
        ),
    ),
)
# (owner, name, index of the argument that is the tensor or storage).
_ARGUMENTS: tuple[tuple[Any, str, int], ...] = (
    (torch._C.PyTorchFileWriter, "write_record", 2),
    (torch.UntypedStorage, "copy_", 0),
    (torch.UntypedStorage, "copy_", 1),
    (torch.Tensor, "map_", 1),
    (torch.Tensor, "map2_", 1),
    (torch.Tensor, "map2_", 2),
    (torch, "set_rng_state", 0),
    (torch.random, "set_rng_state", 0),
)


@contextmanager
def installed(engine: ModuleType) -> Iterator[None]:
    """Wrap every door for as long as the context is open."""
    with ExitStack() as stack:
        for owner, names in _ESCAPES:
            for name in names:
                stack.enter_context(_wrapped(owner, name, 0, _door(engine, pin=True)))
        for owner, names in _READS:
            for name in names:
                stack.enter_context(_wrapped(owner, name, 0, _door(engine, pin=False)))
        stack.enter_context(replaced(torch.UntypedStorage, "data_ptr", _data_ptr(torch.UntypedStorage.data_ptr)))
        for name in ("save", "load"):
            stack.enter_context(replaced(torch, name, _by_identity(getattr(torch, name))))
        for owner, name, index in _ARGUMENTS:
            stack.enter_context(_wrapped(owner, name, index, _door(engine, pin=False)))
        yield


_DEVICES = ("cpu", "cuda")
_thread = threading.local()


def _by_identity(serialize: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.save` or `torch.load`, which ask for addresses only to tell storages apart."""

    @functools.wraps(serialize)
    def serializing(*args: Any, **kwargs: Any) -> Any:
        _thread.serializing = getattr(_thread, "serializing", 0) + 1
        try:
            return serialize(*args, **kwargs)
        finally:
            _thread.serializing -= 1

    return serializing


def _data_ptr(data_ptr: Callable[[Any], int]) -> Callable[[Any], int]:
    """Answer `torch.save` and `torch.load` with the storage's identity: for that it need not stay in place."""

    @functools.wraps(data_ptr)
    def address(storage: Any) -> int:
        if getattr(_thread, "serializing", 0) and has_storage(storage):
            return int(storage._cdata) if storage.nbytes() else 0
        return data_ptr(storage)

    return address


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for as long as the context is open; one the owner inherits is inherited again after."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def held(engine: ModuleType, target: Any, pin: bool = False) -> Any:
    """Return a context in which the bytes of a tensor or storage, or of several, are in memory.

    `pin` keeps them there until the storage dies, unless the block raises.
    """
    return engine.Hold(target, pin)


_Door = Callable[[Any], Any]


def _door(engine: ModuleType, *, pin: bool) -> _Door:
    return lambda target: held(engine, target, pin)


@contextmanager
def _wrapped(owner: Any, name: str, index: int, door: _Door) -> Iterator[None]:
    original = getattr(owner, name, None)
    if original is None:  # this torch has no such door
        yield
        return

    @functools.wraps(original)
    def opened(*args: Any, **kwargs: Any) -> Any:
        # By keyword, what is held besides the one that is meant does no harm.
        targets = args[index : index + 1] or tuple(kwargs.values())
        with door(targets):
            return original(*args, **kwargs)

    with replaced(owner, name, opened):
        yield


def has_storage(target: Any) -> bool:
    """Return whether `target` is a storage, or a tensor with one, that a session may have taken the bytes of."""
    if isinstance(target, torch.UntypedStorage):
        return target.device.type in _DEVICES
    if not isinstance(target, torch.Tensor) or target.device.type not in _DEVICES:
        return False
    return bool(torch._C._has_storage(target))

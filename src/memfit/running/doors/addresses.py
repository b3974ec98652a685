"""The answer of `data_ptr()`: an address, whose storage stays where it is; or a number that tells storages apart.

Which of them is decided by who asks, never by where: hooks on saved tensors, modes and custom ops in Python run inside
ops, and may keep what they are told. Only three kinds of functions are known to keep no address, and pin nothing.

Launchers of kernels give the addresses of an op's operands to a kernel of that op. Serialisers ask for the address of
every weight only to find those that share memory: to let them pin each one for life would end the budget at the first
checkpoint. Readers copy, or hold, the bytes of what they are given.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch

from memfit.errors import BudgetError, UsageError
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import has_storage, held, replaced, when_imported
from memfit.running.frames import unseen

# Modules whose functions give the addresses they ask for to the kernel that they launch, and keep none (`launches.py`
# has each launch be an op). One that is missing, here or below, is given an address that stays valid, which costs room
# and is never wrong.
LAUNCHING = {
    "triton.runtime.jit",
    "triton.backends.compiler",
    "triton.backends.nvidia.driver",
    "triton.backends.amd.driver",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.runtime.static_triton_launcher",
}
# Functions that compare the addresses they ask for, or look whether they are aligned, and never read what is there. One
# that keeps what it is told (`_get_tid`) compares it with what it is told later: a storage has one number for as long
# as the session lasts.
COMPARING = {
    "torch.serialization": {"persistent_id", "persistent_load", "load_tensor"},
    "torch.storage": {"_to"},
    "torch.autograd.graph": {"_get_tid", "_get_sid"},
    "torch.nn.modules.rnn": {"flatten_parameters"},
    "torch._inductor.utils": {"copy_misaligned_inputs", "remove_unaligned_input_idxs"},
    "torch.export.pt2_archive._package_weights": {"__init__", "_end_ptr", "get_complete_tensor"},
    "torch.distributed.utils": {"_data_ptr_allocated"},
    "torch.distributed.checkpoint._state_dict_stager": {"_offload_tensor"},
    "torch.distributed.fsdp._flat_param": {"_same_storage"},
    "torch.distributed.fsdp._runtime_utils": {"_catch_all_reshard"},
    "torch.distributed.fsdp._fully_shard._fsdp_param": {"reset_sharded_param"},
    "safetensors.torch": {"storage_ptr", "_end_ptr", "_filter_shared_not_shared", "_is_complete"},
    "transformers.modeling_utils": {"_end_ptr", "_find_disjoint", "_find_identical"},
    "transformers.pytorch_utils": {"id_tensor_storage"},
    "transformers.trainer": {"create_optimizer"},
    "huggingface_hub.serialization._torch": {
        "storage_ptr", "_get_unique_id", "_end_ptr", "_filter_shared_not_shared", "_is_complete"
    },
    "accelerate.utils.modeling": {"id_tensor_storage"},
}  # fmt: skip
# Functions that read the bytes at the address of the tensor they are given: (module, name) -> whether what they
# return has a view of these bytes.
READING = {
    ("torch.export.pt2_archive._package", "_get_raw_tensor_bytes"): False,
    ("safetensors.torch", "_tobytes"): False,
    ("safetensors.torch", "_to_ndarray"): True,
}
# Methods that hand an address on to whoever calls them, and functions in no module, which a launcher has generated and
# calls. The asker is who calls these.
_BETWEEN = {
    ("torch.storage", "data_ptr"), ("torch.storage", "_data_ptr"), ("triton.runtime.jit", "data_ptr"),
    ("", "dynamic_func"), ("", "launcher"),
}  # fmt: skip
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_SPACE = 1 << 48  # between the numbers of two storages: no address is larger, so no two overlap


def data_ptr(engine: EngineModule, original: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return the replacement of a `data_ptr` method in a session."""

    def data_ptr(target: Any) -> int:
        asker = _asker(sys._getframe(1))
        if has_storage(target):
            if asker[0] in LAUNCHING and engine.is_operand(target):  # which it is until the launch is over
                return original(target)
            if _compares(asker) and (place := engine.place_of(target)) is not None:
                with unseen():
                    return number(target, *place)
        if asker in READING and _of(target) in _held:  # until it has read them
            return original(target)
        with held(engine, target, pin=True):
            return original(target)

    return data_ptr


def number(target: torch.Tensor | torch.UntypedStorage, storage: int, offset: int) -> int:
    """Return the number that stands for an address: equal for equal places in memory, as far apart as they.

    It is as well aligned (a storage in an arena begins at a multiple of 64 bytes or more), and the same whether the
    storage moves, is pinned, or has yet to be adopted.

    Args:
        target: What the address is asked of.
        storage: The StorageImpl that its bytes belong to, by its address.
        offset: Where the bytes of the target's storage begin in those.
    """
    if isinstance(target, torch.UntypedStorage):
        return storage * _SPACE + offset if target.nbytes() else 0
    inside = int(target.storage_offset()) * target.element_size()
    return storage * _SPACE + offset + inside if target.numel() else 0


def refuse_among_kept(session: str) -> None:
    """Raise UsageError within `allow_mutation_on_saved_tensors`; `session` says what happens there.

    Torch would not see that a saved tensor is written to, if it had been saved on the other side.
    """
    if getattr(torch.autograd.graph, "_allow_mutation_on_saved_tensors_enabled", False):
        raise UsageError(
            f"{session} within allow_mutation_on_saved_tensors",
            why="torch knows there what was saved by its address, and in a session storages have others",
            remedy="begin the session before that block, and end it after",
        )


def _asker(frame: FrameType) -> tuple[str, str]:
    """Return the module and the name of the function that asks, behind what only hands an address on to it."""
    asking: FrameType | None = frame
    while asking is not None:
        module, name = asking.f_globals.get("__name__", ""), asking.f_code.co_name
        is_part = name in _COMPREHENSIONS and asking.f_back is not None and asking.f_back.f_globals is asking.f_globals
        if not is_part and (module, name) not in _BETWEEN:
            return module, name
        asking = asking.f_back
    return "", ""


def _compares(asker: tuple[str, str]) -> bool:
    module, name = asker
    return name in COMPARING.get(module, ())


_held: set[tuple[int, int]] = set()  # what readers' wrappers hold: threads and storages


def _of(target: torch.Tensor | torch.UntypedStorage) -> tuple[int, int]:
    with unseen():
        storage = target if isinstance(target, torch.UntypedStorage) else target.untyped_storage()
    return threading.get_ident(), storage._cdata


@contextmanager
def readers_held(engine: EngineModule) -> Iterator[None]:
    """Have the bytes in memory for as long as a serialiser reads them, once its library is imported."""
    with ExitStack() as stack:
        for (library, name), gives_view in READING.items():
            wrap = _viewing if gives_view else _reading

            def found(module: ModuleType, name: str = name, wrap: Any = wrap) -> None:
                reader = getattr(module, name, None)
                if reader is not None:
                    stack.enter_context(replaced(module, name, wrap(engine, reader)))

            stack.enter_context(when_imported(library, found))
        yield


def _reading(engine: EngineModule, read: Callable[..., Any]) -> Callable[..., Any]:
    def reading(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not has_storage(tensor):
            return read(tensor, *args, **kwargs)
        with held(engine, tensor):
            _held.add(_of(tensor))
            try:
                return read(tensor, *args, **kwargs)
            finally:
                _held.discard(_of(tensor))

    return reading


def _viewing(engine: EngineModule, view: Callable[..., Any]) -> Callable[..., Any]:
    def viewing(tensor: Any) -> Any:
        if not (has_storage(tensor) and tensor.numel() and engine.may_leave(tensor)):
            return view(tensor)
        with contextlib.suppress(BudgetError):  # a tensor that does not fit is copied
            return _View(engine, tensor).array(), tensor
        return copied(engine, tensor), tensor

    return viewing


class _View:
    """A tensor's bytes as an array that keeps them in memory until it dies."""

    def __init__(self, engine: EngineModule, tensor: torch.Tensor) -> None:
        self._hold = engine.Hold(tensor)
        address = engine.original_of(torch.Tensor.data_ptr)(tensor)
        self.__array_interface__ = {"data": (address, True), "shape": (tensor.nbytes,), "typestr": "|u1", "version": 3}

    def array(self) -> Any:
        import numpy as np

        return np.asarray(self)


def copied(engine: EngineModule, tensor: torch.Tensor) -> Any:
    """Return the bytes of a contiguous tensor as an array of their own, read wherever they are."""
    import numpy as np

    begin = int(tensor.storage_offset()) * tensor.element_size()
    return np.frombuffer(engine.read_bytes(tensor, begin, tensor.nbytes), np.uint8)

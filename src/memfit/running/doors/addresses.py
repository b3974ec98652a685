"""The answer of `data_ptr()`: an address, whose storage stays where it is; or a number that tells storages apart.

Inside an op its operands are in memory anyway, until it ends: that is how long an address that is asked for there is
good, as it is for the op's kernels.

Serialisers ask for the address of every weight only to find those that share memory. To let them pin each one for
life would end the budget at the first checkpoint.
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

from memfit.errors import BudgetError
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import has_storage, held, replaced, when_imported

# Functions that compare the addresses they ask for, or look whether they are aligned, and never read what is there. One
# that is missing here is given an address that stays valid, which costs room and is never wrong.
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
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_SPACE = 1 << 48  # between the numbers of two storages: no address is larger, so no two overlap


def data_ptr(engine: EngineModule, original: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return the replacement of a `data_ptr` method in a session."""

    def data_ptr(target: Any) -> int:
        if has_storage(target) and engine.is_operand(target):  # what is done with the address is over with the op
            return original(target)
        asker = _asker(sys._getframe(1))
        if asker in READING and _of(target) in _held:  # until it has read them
            return original(target)
        if has_storage(target) and _compares(asker) and engine.may_leave(target):
            return number(target)
        with held(engine, target, pin=True):
            return original(target)

    return data_ptr


def number(target: torch.Tensor | torch.UntypedStorage) -> int:
    """Return the number that stands for an address: equal for equal places in one storage, as far apart as they.

    It is as well aligned: a storage in an arena begins at a multiple of 64 bytes or more.
    """
    if isinstance(target, torch.UntypedStorage):
        return target._cdata * _SPACE if target.nbytes() else 0
    inside = int(target.storage_offset()) * target.element_size()
    return number(target.untyped_storage()) + inside if target.numel() else 0


def _asker(frame: FrameType) -> tuple[str, str]:
    """Return the module and the name of the function that asks, behind torch's own methods and comprehensions."""
    asking: FrameType | None = frame
    while asking is not None:
        module, name = asking.f_globals.get("__name__", ""), asking.f_code.co_name
        if name not in _COMPREHENSIONS and (module, name.lstrip("_")) != ("torch.storage", "data_ptr"):
            return module, name
        asking = asking.f_back
    return "", ""


def _compares(asker: tuple[str, str]) -> bool:
    module, name = asker
    return name in COMPARING.get(module, ())


_held: set[tuple[int, int]] = set()  # what readers' wrappers hold: threads and storages


def _of(target: torch.Tensor | torch.UntypedStorage) -> tuple[int, int]:
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

"""A C function is answered for wherever a reference to it was taken, and for no longer than the session lasts."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

import memfit
from memfit.running import engine
from running.doors.outside import through_ctypes
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = pytest.mark.timeout(60)


class Exchange(ctypes.Structure):
    """DLPack's table of C functions, as far as it is used here."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))),
        ("to_python", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))),
        ("plain_from", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
    )


def exchange() -> Exchange:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return Exchange.from_address(pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def by_managed_exchange(tensor: torch.Tensor) -> torch.Tensor:
    managed, taken = ctypes.c_void_p(), ctypes.py_object()
    assert EXCHANGE.managed_from(tensor, ctypes.byref(managed)) == 0
    assert EXCHANGE.to_python(managed, ctypes.byref(taken)) == 0
    made = taken.value
    ctypes.pythonapi.Py_DecRef(taken)  # the reference that came with it
    return made


def by_plain_exchange(tensor: torch.Tensor) -> np.ndarray:
    plain = (ctypes.c_uint64 * 8)()
    assert EXCHANGE.plain_from(tensor, ctypes.addressof(plain)) == 0
    return through_ctypes(plain[0])


# As modules bind them when they are imported, before any session.
EXCHANGE = exchange() if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else None
tensor_data_ptr, storage_data_ptr = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr
base_numpy, base_tolist = torch._C.TensorBase.numpy, torch._C.TensorBase.tolist
set_state = torch.default_generator.set_state
BOUND = {
    "to_dlpack": lambda t: from_dlpack(to_dlpack(t)),
    "data_ptr": lambda t: through_ctypes(tensor_data_ptr(t)),
    "storage data_ptr": lambda t: through_ctypes(storage_data_ptr(t.untyped_storage())),
    "numpy": base_numpy,
    "data address": lambda t: through_ctypes(torch._C._data_address(t)),
    "DLPack's C functions": by_managed_exchange,
    "DLPack's C function for a call": by_plain_exchange,
}
if EXCHANGE is None:
    BOUND = {name: door for name, door in BOUND.items() if "DLPack's" not in name}


@pytest.mark.parametrize("state", ["away", "here"])
@pytest.mark.parametrize("name", BOUND)
def test_a_function_bound_before_the_session_gives_memory_that_stays(name, state):
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        if state == "here":
            tensor.add_(0)
        outside = BOUND[name](tensor)
        press()
        tensor[5] = -1.0
        assert float(outside[5]) == -1.0 and float(outside[COUNT - 1]) == COUNT - 1
        assert is_resident(tensor)


COPIES = {
    "numpy": lambda t: np.from_dlpack(t, copy=True),
    "torch": lambda t: torch.from_dlpack(t, copy=True),
    "the method": lambda t: from_dlpack(t.__dlpack__(copy=True)),
    "the method, versioned": lambda t: from_dlpack(t.__dlpack__(copy=True, max_version=(1, 0))),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_by_dlpack_is_one_and_outlives_the_session(name):
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        copy = COPIES[name](tensor)
        press()
        assert not is_resident(tensor)
        tensor[5] = -1.0
        assert [float(value) for value in copy[:6]] == [0, 1, 2, 3, 4, 5]
    assert [float(value) for value in copy[-2:]] == [COUNT - 2, COUNT - 1]


def test_bound_functions_that_read_are_right_too():
    state = torch.get_rng_state()
    expected = torch.rand(4).tolist()
    with memfit.session(BUDGET, "ram"):
        assert base_tolist(evicted())[-1] == COUNT - 1
        set_state(evicted(state))
        assert torch.rand(4).tolist() == expected


def test_a_redirected_function_takes_its_arguments_as_before_and_is_itself_again_after():
    with memfit.session(BUDGET, "ram"):
        tensor = ramp().requires_grad_()
        assert base_numpy(tensor, force=True)[3] == 3
        with pytest.raises(TypeError):
            tensor.data_ptr(1)  # type: ignore[call-arg]
        with pytest.raises(RuntimeError, match="requires grad"):
            tensor.numpy()
        assert torch._C._to_dlpack(tensor.detach(), dl_device=None, copy=None)
    original = engine.load().original_of(tensor_data_ptr)
    assert tensor_data_ptr(tensor) == original(tensor) == tensor.data_ptr()
    assert original.__name__ == "data_ptr"


def test_what_is_no_c_function_cannot_be_redirected():
    with pytest.raises(TypeError, match="redirected"):
        engine.load().original_of(ramp)


def test_comparing_storages_needs_no_bytes_and_pins_nothing():
    with memfit.session(BUDGET, "ram"):
        tensor, other = evicted(), torch.ones(3).add_(1)
        press()
        assert torch._C._is_alias_of(tensor, tensor[3:]) and not torch._C._is_alias_of(tensor, other)
        assert not torch._C._is_alias_of(other, tensor)
        assert torch._C._overlaps(tensor[:5], tensor[4:])
        press()
        assert not is_resident(tensor)

"""Memory that escapes from a session stays where it is; what goes round the doors is an error or is held."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import memfit
from memfit.running import engine
from running.doors.outside import original, through_ctypes
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

ESCAPES = {
    "numpy": lambda t: t.numpy(),
    "numpy of a view": lambda t: t.view(256, 256).numpy().reshape(-1),
    "forced numpy": lambda t: torch.nn.Parameter(t).numpy(force=True),
    "asarray": np.asarray,
    "from_dlpack in numpy": np.from_dlpack,
    "from_dlpack": lambda t: torch.from_dlpack(t),
    "from a capsule": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "from a method's capsule": lambda t: torch.utils.dlpack.from_dlpack(t.__dlpack__()),
    "data_ptr": lambda t: through_ctypes(t.data_ptr()),
    "storage data_ptr": lambda t: through_ctypes(t.untyped_storage().data_ptr()),
    "typed storage data_ptr": lambda t: through_ctypes(t.storage().data_ptr()),
    "array interface": lambda t: through_ctypes(t.__array__().__array_interface__["data"][0]),
}
if hasattr(torch.Tensor, "const_data_ptr"):
    ESCAPES["const_data_ptr"] = lambda t: through_ctypes(t.const_data_ptr())


@pytest.mark.parametrize("name", ESCAPES)
def test_memory_that_escapes_stays_where_it_is_and_is_shared_both_ways(name, session):
    tensor = evicted()
    outside = ESCAPES[name](tensor)
    assert float(outside[COUNT - 1]) == COUNT - 1
    press()
    tensor[5] = -1.0
    assert float(outside[5]) == -1.0
    if getattr(getattr(outside, "flags", None), "writeable", True):
        outside[6] = -2.0
        press()
        assert tensor[6].item() == -2.0
    assert is_resident(tensor)


def test_an_escaped_storage_leaves_the_budget_when_it_dies(session):
    before = session.stats.live_bytes
    tensor = evicted()
    array = tensor.numpy()
    del tensor
    press()
    assert array[9] == 9 and session.stats.live_bytes == before + array.nbytes
    del array
    assert session.stats.live_bytes == before


def test_an_array_made_in_the_session_outlives_it():
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        array = tensor.numpy()
    array[3] = 77
    assert tensor[3].item() == 77
    tensor[4] = 78
    assert array[4] == 78
    with memfit.session(BUDGET, "ram"):
        press()
        tensor[5] = 79
        press()
        assert array[5] == 79
        array[6] = 80
        assert tensor[6].item() == 80
    assert array.sum() == tensor.sum().item()


@pytest.mark.parametrize("share", [lambda t: t.numpy(), np.asarray])
def test_memory_shared_before_the_session_stays_shared_in_it(share):
    tensor = ramp()
    outside = share(tensor)
    with memfit.session(BUDGET, "ram"):
        tensor.add_(1)
        press()
        tensor[0] = -5.0
        assert float(outside[0]) == -5.0 and float(outside[9]) == 10
        press()
    assert float(outside[9]) == 10 and tensor[9].item() == 10


def test_a_tensor_on_numpy_memory_is_left_there(session):
    array = np.zeros(COUNT, np.float32)
    tensor = torch.from_numpy(array)
    tensor.add_(3)
    press()
    assert array[COUNT - 1] == 3
    array[1] = 9
    assert tensor[1].item() == 9


BEYOND_THE_DOORS = {
    "tensor data_ptr": lambda t: original(torch.Tensor.data_ptr)(t),
    "tensor numpy": lambda t: original(torch.Tensor.numpy)(t),
    "tensor tolist": lambda t: original(torch.Tensor.tolist)(t),
    "storage data_ptr": lambda t: original(torch.UntypedStorage.data_ptr)(t.untyped_storage()),
    "generator state": lambda t: original(torch.Generator.set_state)(torch.Generator(), t.view(torch.uint8)[:5056]),
}


@pytest.mark.parametrize("name", BEYOND_THE_DOORS)
def test_going_round_the_doors_is_a_clear_error_and_never_garbage(name):
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        with pytest.raises(RuntimeError, match="memfit"):
            BEYOND_THE_DOORS[name](tensor)
        assert torch.equal(tensor, ramp())


def test_holding_a_tensor_lets_its_memory_be_read_without_an_op(session):
    tensor = evicted()
    with session.hold(tensor):
        assert through_ctypes(original(torch.Tensor.data_ptr)(tensor))[9] == 9
        press()
        assert is_resident(tensor)
    press()
    assert not is_resident(tensor)


def test_a_hold_that_is_interrupted_before_it_is_noted_ends_all_the_same(session):
    """A Ctrl-C may come between the call that holds and the assignment of what it returns."""
    tensor = evicted()
    assert engine.load().Hold(tensor) is not None
    press()
    assert not is_resident(tensor)


def test_nested_holds_end_with_the_outermost(session):
    tensor = evicted()
    with session.hold(tensor):
        with session.hold(tensor.untyped_storage()):
            pass
        press()
        assert is_resident(tensor)
    press()
    assert not is_resident(tensor)

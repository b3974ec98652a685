"""What Python can do to a tensor without an op works on one whose bytes are away, and nothing is left behind."""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch

import memfit
from memfit.running import engine
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["ram", "disk"])
def session(request):
    with memfit.session(BUDGET, request.param) as session:
        yield session


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def legacy(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return file


def over_a_queue(tensor: torch.Tensor) -> torch.Tensor:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(tensor)
    return queue.get()


def head(storage: torch.UntypedStorage) -> list[int]:
    return [storage[index] for index in range(64, 96)]


def with_state(tensor: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty(0)
    fresh.__setstate__((tensor.storage(), 2, (5,), (1,)))
    return fresh


def written(tensor: torch.Tensor, write: Any) -> torch.Tensor:
    write(tensor)
    return tensor


READS = {
    "tolist": lambda t: t.tolist()[-3:],
    "tolist of a view": lambda t: t[5:9].tolist(),
    "item": lambda t: t[7].item(),
    "bool": lambda t: bool(t[7]),
    "float": lambda t: float(t[9]),
    "index": lambda t: range(9)[t[3].long()],
    "format": lambda t: f"{t[3]:.3f}",
    "iteration": lambda t: [float(value) for value in t[:5]],
    "contains": lambda t: 3.0 in t,
    "repr": repr,
    "print": lambda t: str(t),
    "equal": lambda t: torch.equal(t, t.clone()),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "pickle, protocol 2": lambda t: pickle.loads(pickle.dumps(t, protocol=2)),
    "pickled parameter": lambda t: pickle.loads(pickle.dumps(torch.nn.Parameter(t))),
    "pickled view": lambda t: pickle.loads(pickle.dumps(t.view(256, 256).t()[3:5])),
    "save": lambda t: torch.load(saved(t)),
    "save of a dict": lambda t: torch.load(saved({"a": t, "b": [t[1:]]}))["b"][0],
    "save in the old format": lambda t: torch.load(legacy(t)),
    "setstate": with_state,
    "tensor of tensors": lambda t: torch.tensor([t[1], t[2]]),
    "tensor of numpy": lambda t: torch.tensor(np.array([1.0, 2.0])) + t[:2],
    "map_": lambda t: torch.zeros(COUNT).map_(t, lambda a, b: b + 1),
    "storage tolist": lambda t: t[:4].clone().untyped_storage().tolist(),
    "storage item": lambda t: t.untyped_storage()[70],
    "storage iteration": lambda t: list(zip(range(9), t.untyped_storage(), strict=False)),
    "storage clone": lambda t: head(t.untyped_storage().clone()),
    "storage copy": lambda t: head(copy.copy(t.untyped_storage())),
    "storage deepcopy": lambda t: head(copy.deepcopy(t.untyped_storage())),
    "typed storage pickle": lambda t: pickle.loads(pickle.dumps(t.storage()))[9],
    "storage copied from": lambda t: head(torch.UntypedStorage(t.nbytes).copy_(t.untyped_storage())),
    "storage is_shared": lambda t: t.untyped_storage().is_shared(),
    "storage filename": lambda t: t.untyped_storage().filename,
    "storage repr": lambda t: repr(t[:4].clone().untyped_storage()),
    "typed storage item": lambda t: t.storage()[9],
    "typed storage tolist": lambda t: t[:9].clone().storage().tolist(),
    "is_shared": lambda t: t.is_shared(),
    "is_pinned": lambda t: t.is_pinned(),
    "from the storage": lambda t: torch.Tensor(t.untyped_storage())[:9],
    "collate": lambda t: torch.utils.data.default_collate([t[:3], t[3:6]]),
    "sparse": lambda t: t[:9].to_sparse().indices().tolist(),
    "vector": lambda t: torch.nn.utils.parameters_to_vector([t, t[:3]])[-5:],
}
WRITES = {
    "apply_": lambda t: t.apply_(lambda value: value + 1),
    "storage setitem": lambda t: t.untyped_storage().__setitem__(2, 64),
    "storage fill_": lambda t: t.untyped_storage().fill_(3),
    "storage byteswap": lambda t: t.untyped_storage().byteswap(torch.float32),
    "storage copy_": lambda t: t.untyped_storage().copy_(torch.full((COUNT,), 2.5).untyped_storage()),
    "storage copy_ of itself": lambda t: t.untyped_storage().copy_(t.clone().untyped_storage()),
    "typed storage setitem": lambda t: t.storage().__setitem__(3, 8.5),
    "typed storage fill_": lambda t: t.storage().fill_(8.5),
    "data": lambda t: setattr(t, "data", t.detach() * 2),
    "set_": lambda t: t.set_(torch.full((9,), 2.0)),
    "storage shrinks": lambda t: (t.untyped_storage().resize_(16), t.resize_(4)),
    "storage grows": lambda t: t.untyped_storage().resize_(t.nbytes + 64),
    "storage is emptied": lambda t: (t.untyped_storage().resize_(0), t.resize_(0)),
    "tensor grows": lambda t: t.resize_(COUNT + 1)[-1:].fill_(5),
    "loaded": lambda t: t.copy_(torch.load(saved(t)).flip(0)),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.full((9,), 2.0)),
}


def plainly(value: Any) -> Any:
    """Return a value without tensors in it, to be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().flatten().tolist()
    return value


@pytest.mark.parametrize("name", READS)
def test_a_read_gives_what_it_gives_plainly_and_leaves_the_tensor_evictable(name):
    expected = plainly(READS[name](ramp()))
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        assert plainly(READS[name](tensor)) == expected
        press()
        assert not is_resident(tensor)
        assert torch.equal(tensor, ramp())


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_no_op_is_kept_when_the_tensor_leaves(name):
    expected = plainly(written(ramp(), WRITES[name]))
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        WRITES[name](tensor)
        tensor.sum()  # memory taken outside an op stays until an op has seen it
        press()
        assert not is_resident(tensor) or tensor.nbytes < 100  # small ones fit beside the rest
        assert plainly(tensor) == expected
    assert plainly(tensor) == expected


def through_ctypes(address: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(address))


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


def original(function: Any) -> Any:
    """Return what torch does, behind the door."""
    return engine.load().original_of(function)


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


@pytest.mark.parametrize("set_state", [
    lambda state: torch.set_rng_state(state),
    lambda state: torch.random.set_rng_state(state),
    lambda state: torch.set_rng_state(new_state=state),
])  # fmt: skip
def test_an_evicted_generator_state_can_be_set(set_state, session):
    state = torch.get_rng_state()
    expected = torch.rand(4).tolist()
    evicted(state)
    set_state(state)
    assert torch.rand(4).tolist() == expected


def test_fork_rng_restores_an_evicted_state(session):
    torch.manual_seed(3)
    with torch.random.fork_rng():
        torch.rand(9)
        press()
    inside = torch.rand(4).tolist()
    torch.manual_seed(3)
    assert torch.rand(4).tolist() == inside


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_checkpoint_twice_as_big_as_the_budget_is_saved_and_loaded(session, tmp_path):
    net, other = model(), torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt")
    assert same(loaded, net.state_dict())
    other.load_state_dict(loaded)
    assert same(other.state_dict(), net.state_dict())
    assert session.stats.peak_footprint_bytes <= BUDGET


def test_a_checkpoint_saved_in_the_session_loads_plainly(tmp_path):
    with memfit.session(BUDGET, "ram"):
        torch.save(model().state_dict(), tmp_path / "net.pt")
    assert same(torch.load(tmp_path / "net.pt"), model().state_dict())


def test_a_mapped_checkpoint_is_read_without_a_copy_of_it(session, tmp_path):
    torch.save(model().state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", mmap=True)
    assert same(loaded, model().state_dict())


def test_a_module_twice_as_big_as_the_budget_is_copied_deeply(session):
    net = model()
    twin = copy.deepcopy(net)
    assert same(twin.state_dict(), net.state_dict())
    with torch.no_grad():
        twin[0].weight.zero_()
    assert net[0].weight.any()


def test_an_optimizer_s_state_is_saved_and_loaded(session):
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    loaded = torch.load(saved(optimizer.state_dict()))
    press()
    fresh = torch.optim.Adam(net.parameters())
    fresh.load_state_dict(loaded)
    for parameter in net.parameters():
        assert same(fresh.state[parameter], optimizer.state[parameter])


def test_shared_memory_takes_the_bytes_along_and_is_left_alone(session):
    tensor = evicted()
    view = tensor[10:20]
    assert tensor.share_memory_() is tensor and tensor.is_shared()
    press()
    view.add_(1)
    assert tensor[10].item() == 11 and tensor[20].item() == 20
    module = model().share_memory()
    press()
    assert same(module.state_dict(), model().state_dict())


def test_a_tensor_goes_through_a_queue(session):
    tensor = evicted()
    received = over_a_queue(tensor)
    press()
    assert torch.equal(received, ramp())
    received[3] = 50
    assert tensor[3].item() == 50  # shared, as plainly


def test_the_pickler_of_multiprocessing_takes_an_evicted_gradient_with_its_parameter(session):
    parameter = torch.nn.Parameter(evicted())
    parameter.grad = evicted()
    press()
    assert len(ForkingPickler.dumps(parameter)) > 0
    assert torch.equal(parameter, ramp()) and torch.equal(parameter.grad, ramp())


optimizer = importlib.import_module("torch.optim.optimizer")
OWNERS = (
    torch, torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.storage, torch.random, torch._C,
    torch._C.PyTorchFileWriter, torch._C.PyTorchFileReader, torch.nn.Module, torch.optim.Optimizer, torch.Generator,
    torch.autograd, torch.serialization, torch.utils.dlpack,
)  # fmt: skip


def attributes() -> list[dict[str, Any]]:
    hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    return [*(dict(vars(owner)) for owner in OWNERS), *map(dict, hooks)]


def changed(before: list[dict[str, Any]]) -> list[str]:
    """Names of attributes that are other objects now, or gone, or new."""
    return [
        name
        for old, new in zip(before, attributes(), strict=True)
        for name in old.keys() | new.keys()
        if name != "__warningregistry__" and (name not in new or name not in old or old[name] is not new[name])
    ]


class Stop(Exception):
    """What a script might raise."""


def test_every_door_is_closed_as_it_was():
    with memfit.session(BUDGET, "ram"):  # the first one may import what it needs
        pass
    before = attributes()
    with memfit.session(BUDGET, "ram"):
        assert changed(before)
    assert not changed(before)
    with pytest.raises(Stop), memfit.session(BUDGET, "ram"):
        raise Stop
    assert not changed(before)
    with pytest.raises(memfit.BudgetError), memfit.session(BUDGET, "ram"):
        torch.zeros(BUDGET)
    assert not changed(before)
    with memfit.session(BUDGET, "ram"), pytest.raises(memfit.MemfitError), memfit.session(BUDGET, "ram"):
        pass
    assert not changed(before)


def test_a_refused_second_session_leaves_the_first_as_it_is():
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        with pytest.raises(memfit.MemfitError, match="active"), memfit.session(BUDGET, "ram"):
            pass
        assert tensor.tolist() == ramp().tolist()


def test_a_door_that_fails_lets_go_of_the_tensor(session):
    tensor = evicted(ramp().requires_grad_().detach())
    needs_grad = torch.nn.Parameter(tensor)
    with pytest.raises(RuntimeError, match="requires grad"):
        needs_grad.numpy()
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        tensor.untyped_storage()[10**9]
    press()
    gc.collect()
    assert not is_resident(tensor)


def test_what_a_collective_is_given_stays_where_it_is(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("there is no torch.distributed to begin")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with memfit.session(BUDGET, "ram"):
            given = ramp()
            distributed.all_reduce(given)
            press()
            assert is_resident(given)
            assert torch.equal(given, ramp())
    finally:
        distributed.destroy_process_group()

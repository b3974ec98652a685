"""Serialisers tell storages apart without pinning them, and get the right bytes from those they read."""

from __future__ import annotations

import ctypes
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import memfit
from memfit.running import engine
from memfit.running.doors import addresses
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def session():
    with memfit.session(BUDGET, "ram") as session:
        yield session


class Raw:
    """Pickles the bytes at an address, as an extension's object might."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getstate__(self) -> dict[str, bytes]:
        storage = self.tensor.untyped_storage()
        return {"bytes": ctypes.string_at(storage.data_ptr(), storage.nbytes())}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        self.bytes = state["bytes"]


@pytest.mark.parametrize("made", ["inside", "before"])
def test_an_object_that_reads_an_address_while_it_is_saved_reads_the_tensor(made):
    before = ramp()
    with memfit.session(BUDGET, "ram"):
        tensor = evicted() if made == "inside" else evicted(before)
        file = io.BytesIO()
        torch.save([Raw(tensor), tensor], file)
        file.seek(0)
        loaded, _ = torch.load(file, weights_only=False)
    assert loaded.bytes == ramp().numpy().tobytes()


def test_saving_a_checkpoint_pins_nothing(session):
    tensor = evicted()
    torch.save([tensor, tensor[3:]], io.BytesIO())
    press()
    assert not is_resident(tensor)


def test_what_compiled_code_on_a_gpu_looks_at_the_alignment_of_is_not_pinned(session):
    from torch._inductor.utils import copy_misaligned_inputs

    tensor = evicted()
    given = [tensor, tensor[1:], tensor[4:]]
    copy_misaligned_inputs(given, [0, 1, 2])
    assert given[0] is tensor and given[2].storage_offset() == 4
    assert given[1]._base is not tensor and torch.equal(given[1], ramp()[1:]), "its kernels read it by 16 bytes"
    del given
    press()
    assert not is_resident(tensor) and engine.load().may_leave(tensor)


def network(layers: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(layers)))


def nothing_stays(tensors: Any) -> bool:
    press()
    return not any(is_resident(tensor) for tensor in tensors if tensor.nbytes > BUDGET // 8)


@pytest.mark.parametrize("layers", [2, 8])  # 0.5 and 2 MiB of weights, in a budget of 1 MiB
def test_a_safetensors_checkpoint_is_right_and_pins_nothing(layers, tmp_path):
    library = pytest.importorskip("safetensors.torch")
    library.save_file(network(layers).state_dict(), tmp_path / "plain")
    with memfit.session(BUDGET, "ram") as session:
        net = network(layers)
        press()
        library.save_file(net.state_dict(), tmp_path / "budget")
        assert library.save(net.state_dict()) == (tmp_path / "plain").read_bytes()
        assert nothing_stays(net.parameters())
        net(torch.ones(8, 256)).sum().backward()
        assert session.stats.peak_footprint_bytes <= BUDGET
    assert (tmp_path / "budget").read_bytes() == (tmp_path / "plain").read_bytes()


def test_safetensors_sees_what_is_shared_and_what_overlaps(session):
    library = pytest.importorskip("safetensors.torch")
    tensor = evicted()
    with pytest.raises(RuntimeError, match="share memory"):
        library.save({"a": tensor, "b": tensor})
    library.save({"a": tensor[:9].clone(), "b": tensor})  # no error
    assert len(library._find_shared_tensors({"a": tensor[:9], "b": tensor[9:]})) == 2
    assert len(library._find_shared_tensors({"a": tensor[:9], "b": tensor[8:]})) == 1
    assert nothing_stays([tensor])


def forget(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> Any:
    """Have a library be imported anew, until the test ends; return it."""
    library = pytest.importorskip(f"{package}.{name}")
    monkeypatch.setattr(sys.modules[package], name, library)  # as it is again after the test
    monkeypatch.delitem(sys.modules, f"{package}.{name}")
    return library


def test_a_library_that_is_imported_in_the_session_is_served_too(tmp_path, monkeypatch):
    forget(monkeypatch, "safetensors", "torch")
    with memfit.session(BUDGET, "ram"):
        library = importlib.import_module("safetensors.torch")
        net = network()
        library.save_file(net.state_dict(), tmp_path / "file")
        assert nothing_stays(net.parameters())
    assert {getattr(library, name, library.save).__module__ for _, name in addresses.READING} == {library.__name__}


def test_a_reader_that_is_not_known_gets_an_address_that_stays(monkeypatch):
    """Its library has been imported twice: what is held is what the other one reads."""
    before = forget(monkeypatch, "safetensors", "torch")
    importlib.import_module("safetensors.torch")
    with memfit.session(BUDGET, "ram"):
        assert before.save({"a": evicted()}) == before.save({"a": ramp()})


def test_a_transformers_checkpoint_is_right_and_pins_nothing(tmp_path):
    library = pytest.importorskip("transformers.pytorch_utils")
    modeling = pytest.importorskip("transformers.modeling_utils")
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        same, other = library.id_tensor_storage(tensor[:5]), library.id_tensor_storage(ramp())
        assert same == library.id_tensor_storage(tensor[7:]) != other
        shared, apart = modeling._find_disjoint([{"a", "b"}], {"a": tensor[:9], "b": tensor[9:]})
        assert not shared and sorted(apart) == ["a", "b"]
        assert nothing_stays([tensor])


def test_exporting_reads_the_bytes_and_pins_nothing(session):
    package = pytest.importorskip("torch.export.pt2_archive._package")
    tensor = evicted()
    assert package._get_raw_tensor_bytes(tensor) == ramp().numpy().tobytes()
    assert nothing_stays([tensor])


@pytest.mark.parametrize("module", addresses.COMPARING)
def test_every_function_that_is_taken_to_compare_addresses_exists(module):
    library = pytest.importorskip(module)
    source = Path(library.__file__ or "").read_text()
    assert [name for name in addresses.COMPARING[module] if f"def {name}(" not in source] == []


COMPARED = """
def id_tensor_storage(target):
    return target.data_ptr()
"""


@pytest.fixture
def compared() -> Callable[[Any], int]:
    """What a library is told that only compares addresses."""
    library: dict[str, Any] = {"__name__": "accelerate.utils.modeling"}
    exec(COMPARED, library)
    return library["id_tensor_storage"]


def test_numbers_are_as_far_apart_as_addresses(compared, session):
    tensor = evicted()
    far = compared(tensor[7:]) - compared(tensor)
    assert compared(tensor) == compared(tensor.untyped_storage()) != compared(ramp())
    assert compared(tensor[:0]) == compared(torch.empty(0).untyped_storage()) == 0
    assert far == tensor[7:].data_ptr() - tensor.data_ptr()


@pytest.mark.parametrize("made", ["inside", "before"])
def test_a_storage_has_one_number_as_long_as_it_lives(made, compared):
    before = ramp()
    with memfit.session(BUDGET, "ram"):
        tensor = evicted() if made == "inside" else before
        numbers = [compared(tensor)]
        tensor.add_(0)
        numbers.append(compared(tensor))
        press()
        numbers.append(compared(tensor))
        tensor.data_ptr()
        numbers.append(compared(tensor))
        press()
        numbers.append(compared(tensor))
    assert len(set(numbers)) == 1


def test_what_lies_in_another_s_memory_has_a_number_there(compared, session):
    tensor = evicted()
    number = compared(tensor)
    array = tensor.numpy()
    assert compared(torch.from_numpy(array)) == number
    assert compared(torch.from_numpy(array[5:])) == compared(tensor[5:])
    assert compared(tensor.untyped_storage()[20:40]) == compared(tensor[5:])
    assert compared(torch.from_dlpack(tensor[9:])) == compared(tensor[9:])
    elsewhere = torch.from_numpy(np.zeros(9, np.float32))
    assert compared(elsewhere) == elsewhere.data_ptr()


def test_a_generator_of_the_program_s_that_a_library_runs_is_the_program_s(compared, session):
    library = compared.__globals__
    exec("def _end_ptr(addresses):\n    return [*addresses]", library | {"__name__": "safetensors.torch"}, library)
    tensor = evicted()
    (address,) = library["_end_ptr"](each.data_ptr() for each in [tensor])
    press()
    assert is_resident(tensor) and ctypes.c_float.from_address(address + 4 * 9).value == 9


def test_an_address_that_is_taken_before_any_op_has_used_the_storage_stays(session):
    storage = torch.UntypedStorage(4 * COUNT)
    address = storage.data_ptr()
    tensor = torch.tensor([], dtype=torch.float32).set_(storage)
    tensor.fill_(7)
    press()
    assert ctypes.c_float.from_address(address).value == 7
    assert engine.load().is_resident(tensor)

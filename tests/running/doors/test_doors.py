"""What becomes of a tensor behind each door: docs/limits.md has the table, and this holds it to it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack

import memfit
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]
LIMITS = Path(__file__).parents[3] / "docs" / "limits.md"
RIGHT, PINNED, COPIED, REFUSED = "right", "pinned", "right, copied", "`AccessError`"


def module(tensor: torch.Tensor) -> torch.nn.Module:
    held = torch.nn.Module()
    held.register_buffer("buffer", tensor)
    return held


def written_by_torchscript(tensor: torch.Tensor) -> float:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buffer", tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.buffer + x

    file = io.BytesIO(torch.jit.script(Model()).save_to_buffer())
    return torch.jit.load(file)(torch.zeros(1))[9].item()


@torch.jit.script
def listed_by_torchscript(x: torch.Tensor) -> list[float]:
    values: list[float] = x.tolist()
    return values


def saved(tensor: torch.Tensor) -> float:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)[9].item()


def as_safetensors(tensor: torch.Tensor) -> float:
    library = pytest.importorskip("safetensors.torch")
    return library.load(library.save({"a": tensor}))["a"][9].item()


def compared_by_torch(tensor: torch.Tensor) -> float:
    assert torch._C._is_alias_of(tensor, tensor[1:])
    assert not torch._C._is_alias_of(tensor, ramp())
    return 9.0 * torch._C._overlaps(tensor, tensor)


def compared_by_transformers(tensor: torch.Tensor) -> float:
    library = pytest.importorskip("transformers.pytorch_utils")
    assert library.id_tensor_storage(tensor) == library.id_tensor_storage(tensor[1:])
    return 9.0


def exported(tensor: torch.Tensor) -> float:
    package = pytest.importorskip("torch.export.pt2_archive._package")
    return np.frombuffer(package._get_raw_tensor_bytes(tensor), np.float32)[9].item()


def as_a_generator_s_state(tensor: torch.Tensor) -> float:
    state = torch.get_rng_state()
    state.add_(0)
    press()
    torch.Generator().set_state(state)
    return 9.0


def profiled(tensor: torch.Tensor) -> float:
    with torch.profiler.profile(with_stack=True, record_shapes=True, profile_memory=True):
        module(tensor).eval()
        return (torch.nn.Flatten(0)(tensor) + 0)[9].item()


# What it is called in the table -> what is done to a tensor (it gives its tenth element), and what becomes of it.
DOORS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "`tolist()`, `item()`, `print`, `in`": (lambda t: (t.tolist()[9], t.item if 3.0 in t else None, repr(t))[0], RIGHT),
    "`apply_`, `map_`, `map2_`": (lambda t: t.map_(t, lambda a, b: b)[9].item(), RIGHT),
    "`copy`, `deepcopy`, `pickle`": (lambda t: pickle.loads(pickle.dumps(copy.deepcopy(t)))[9].item(), RIGHT),
    "`torch.save`, `torch.load`": (saved, RIGHT),
    "`safetensors` (`save_file`, `save_pretrained`, `accelerate`)": (as_safetensors, RIGHT),
    "`transformers`, `huggingface_hub`, `accelerate`: which tensors share memory": (compared_by_transformers, RIGHT),
    "`torch.export.save`": (exported, RIGHT),
    "`torch.jit.save`, `ScriptModule.save`": (written_by_torchscript, RIGHT),
    "`Generator.set_state`, `set_rng_state`": (as_a_generator_s_state, RIGHT),
    "`torch.profiler`, with any options": (profiled, RIGHT),
    "`is_alias_of` (in C++ too), `_overlaps`": (compared_by_torch, RIGHT),
    "a storage's bytes one by one, `copy_`, `fill_`, `byteswap`": (lambda t: t.storage()[9], RIGHT),
    "`share_memory_()`, queues": (lambda t: t.clone().share_memory_()[9].item(), RIGHT),
    "DLPack with `copy=True`": (lambda t: np.from_dlpack(t, copy=True)[9], COPIED),
    "`np.array`": (lambda t: np.array(t, np.float64)[9], COPIED),
    "`numpy()`, `np.asarray`": (lambda t: t.numpy()[9], PINNED),
    "DLPack, `to_dlpack`": (lambda t: torch.from_dlpack(to_dlpack(t))[9].item(), PINNED),
    "`data_ptr()`, of tensors and storages": (lambda t: 9.0 * bool(t.data_ptr()), PINNED),
    "a slice of a storage, `storage[a:b]`": (lambda t: t.untyped_storage()[36:40] and 9.0, PINNED),
    "TorchScript's `tolist()`": (lambda t: listed_by_torchscript(t)[9], REFUSED),
}


@pytest.mark.parametrize("name", [name for name in DOORS if DOORS[name][1] != REFUSED])
def test_the_door_does_what_the_table_says(name):
    door, outcome = DOORS[name]
    assert door(ramp()) == 9.0
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        assert door(tensor) == 9.0
        press()
        assert is_resident(tensor) == (outcome == PINNED)
        assert tensor[COUNT - 1].item() == COUNT - 1


@pytest.mark.parametrize("name", [name for name in DOORS if DOORS[name][1] == REFUSED])
def test_the_refused_door_is_a_clear_error(name):
    door, _ = DOORS[name]
    assert door(ramp()) == 9.0
    with pytest.raises(memfit.AccessError, match="not an op"), memfit.session(BUDGET, "ram"):
        door(evicted())


def test_the_table_has_every_door_as_it_is():
    rows = [f"| {name} | {outcome} |" for name, (_, outcome) in DOORS.items()]
    text = LIMITS.read_text()
    table = text.split("| door | a tensor behind it |\n| --- | --- |\n")[1].split("\n\n")[0].splitlines()
    assert table == rows


def test_the_bytes_of_a_storage_that_has_none_are_an_error():
    zeros = torch._efficientzerotensor(4)
    with memfit.session(BUDGET, "ram") as session:
        assert zeros.untyped_storage().nbytes() > 0
        with pytest.raises(ValueError, match="no bytes in memory"):
            session.read_bytes(zeros.untyped_storage())


@pytest.mark.parametrize("as_it_is", [
    lambda: ramp()[1:9:2], lambda: ramp().view(256, 256).T, lambda: torch.tensor(3), lambda: ramp() > 7,
    lambda: ramp()[:0], lambda: torch.nn.Parameter(ramp(), requires_grad=False), lambda: ramp().to(torch.float16),
    lambda: torch.sparse_coo_tensor([[1]], [2.0], (3,)), lambda: ramp().requires_grad_(),
    lambda: ramp().to(torch.bfloat16), lambda: torch.view_as_complex(ramp().view(-1, 2)).conj(),
    lambda: [ramp()[:3], ramp()[3:6]],
])  # fmt: skip
def test_an_array_of_a_tensor_is_what_it_is_plainly(as_it_is):
    def made() -> object:
        try:
            array = np.array(as_it_is())
        except (RuntimeError, TypeError) as error:
            return type(error), str(error)
        array[...] = array  # it may be written to
        return array.tolist(), array.dtype, array.shape

    plainly = made()
    with memfit.session(BUDGET, "ram"):
        assert made() == plainly


def test_an_array_of_a_tensor_shares_no_memory_with_it():
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        array = np.array(tensor)
        array[9] = 0
        assert tensor[9].item() == 9.0

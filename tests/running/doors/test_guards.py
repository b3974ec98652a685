"""What Python can do to a tensor without an op works on one whose bytes are away."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import memfit
from running.doors.outside import saved
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


def legacy(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return file


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
        assert is_resident(tensor) == (tensor.nbytes == 0)
        assert plainly(tensor) == expected
    assert plainly(tensor) == expected

"""What memfit itself calls on the program's thread is not seen by the modes that the program has entered."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memfit


class Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))


def stepped(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[Tensor], None]:
    def act(x: Tensor) -> None:
        net = network()
        optimizer = make(net.parameters(), lr=0.1, **options)
        net(x).sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return act


def through_a_file(x: Tensor) -> None:
    net, file = network(), io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    net.load_state_dict(torch.load(file))


def hooked(x: Tensor) -> None:
    with saved_tensors_hooks(lambda t: np.array(t.detach()), torch.from_numpy):
        network()(x.requires_grad_()).sum().backward()


def complex_of(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.view(8, 4, 2)).conj()


ACTS: dict[str, Callable[[Tensor], Any]] = {
    "array": np.array,
    "array of another layout": lambda x: np.array(x.t()),
    "array of another type": lambda x: np.array(x, dtype=np.float64),
    "array of a half": lambda x: np.array(x.half()),
    "array without a copy": np.asarray,
    "ufunc": np.exp,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "numpy by force": lambda x: (x.requires_grad_() * 2).numpy(force=True),
    "conjugate by force": lambda x: complex_of(x).numpy(force=True),
    "conjugate as a list": lambda x: complex_of(x).tolist(),
    "negative as a list": lambda x: torch._neg_view(x).tolist(),
    "item": lambda x: x[0, 0].item(),
    "index": lambda x: [1, 2][torch.tensor(1)],
    "iteration": lambda x: [float(each) for each in x[0]],
    "text": repr,
    "address": lambda x: x.data_ptr(),
    "address of a storage": lambda x: x.untyped_storage().data_ptr(),
    "DLPack": torch.from_dlpack,
    "alias": lambda x: torch._C._is_alias_of(x, x),
    "apply": lambda x: x.apply_(lambda value: value + 1),
    "map": lambda x: x.map_(x.clone(), lambda a, b: a + b),
    "storage filled": lambda x: x.untyped_storage().fill_(0),
    "storage copied": lambda x: x.untyped_storage().clone(),
    "typed storage": lambda x: x.storage().tolist(),
    "shared": lambda x: x.share_memory_(),
    "set": lambda x: torch.empty(0).set_(x.untyped_storage()),
    "data": lambda x: setattr(x, "data", x.data.clone()),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "file": through_a_file,
    "random numbers": lambda x: torch.set_rng_state(torch.get_rng_state()),
    "hooks": hooked,
    "checkpoint": lambda x: checkpoint(network(), x.requires_grad_(), use_reentrant=False).sum().backward(),
    "reentrant checkpoint": lambda x: checkpoint(network(), x.requires_grad_(), use_reentrant=True).sum().backward(),
    "grad of a grad": lambda x: torch.autograd.grad(network()(x.requires_grad_()).sum(), x, create_graph=True),
    "vmap": lambda x: torch.func.vmap(network())(x),
    "SGD": stepped(torch.optim.SGD),
    "Adam": stepped(torch.optim.Adam, foreach=True),
    "fused AdamW": stepped(torch.optim.AdamW, fused=True),
    "sparse": lambda x: torch._foreach_add([x.to_sparse(), x.to_sparse()], 1.0),
}


def seen_by(mode: type[Ops] | type[Functions], act: Callable[[Tensor], Any]) -> list[str]:
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    with mode() as entered:
        try:
            act(x)
        except (NotImplementedError, RuntimeError) as error:
            entered.seen.append(type(error).__name__)
    return sorted(entered.seen)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [Ops, Functions])
@pytest.mark.parametrize("name", ACTS)
def test_modes_see_what_they_see_without_a_session(mode, name):
    seen_by(mode, ACTS[name])  # what torch does once in a process
    plain = seen_by(mode, ACTS[name])
    with memfit.session(1 << 20, "ram"):
        limited = seen_by(mode, ACTS[name])
    assert limited == plain

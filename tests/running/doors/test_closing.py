"""A session closes its doors as they were, whatever happens, and a door lets go of what it held."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import pytest
import torch

import memfit
from running.pressure import BUDGET, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

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


@pytest.mark.unmapped
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
    with pytest.raises(IndexError, match="out of range"):
        tensor.untyped_storage()[10**9]
    press()
    gc.collect()
    assert not is_resident(tensor)

"""Tensors made before a session move into it, and everything is in ordinary memory and of use after it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.running import engine
from running.helpers_training import STEPS, mlp
from running.plainly import descend, same_bits
from running.pressure import is_ordinary

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]

TIERS = ("ram", "disk")


def pretrained(width: int = 64) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = mlp(width)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    torch.manual_seed(7)
    return [loss.item() for loss in descend(optimizer, lambda: model(torch.randn(32, 64)).square().mean(), STEPS)]


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *gradients, *states]


def adopted_by_an_empty_session() -> int:
    gc.collect()
    with memfit.session(None, "ram") as session:
        return session.stats.adopted_bytes


def test_a_model_made_before_the_session_moves_into_it():
    before = adopted_by_an_empty_session()
    model, optimizer = pretrained()
    train(model, optimizer)
    expected = sum(t.nbytes for t in tensors_of(model, optimizer))
    with memfit.session(None, "ram") as session:
        assert session.stats.adopted_bytes == before + expected
        assert not any(is_ordinary(t) for t in tensors_of(model, optimizer))


@pytest.mark.parametrize("tier", TIERS)
def test_a_model_larger_than_the_budget_is_adopted_and_trains_as_plainly(tier):
    plain = train(*pretrained())
    model, optimizer = pretrained()
    with memfit.session(100_000, tier) as session:
        assert session.stats.adopted_bytes >= sum(p.nbytes for p in model.parameters())
        losses = train(model, optimizer)
    assert losses == plain
    assert session.stats.peak_footprint_bytes <= 100_000
    assert session.stats.bytes_out > 0


def test_a_view_made_before_the_session_still_shares_its_storage():
    base = torch.arange(1000.0)
    view = base.view(10, 100)[3]
    with memfit.session(20_000, "ram"):
        for _ in range(3):
            torch.zeros(4000).add_(1)  # pushes the others out
        view.add_(1000)
    assert base[300].item() == 1300 and view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert torch.equal(base[300:400], torch.arange(1300.0, 1400.0))


def assert_usable_as_before(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The tensors lie in ordinary memory, and training goes on as in a run that never met a session."""
    assert all(is_ordinary(t) for t in tensors_of(model, optimizer))
    assert not engine.load().active()
    plain_model, plain_optimizer = pretrained()
    train(plain_model, plain_optimizer)
    assert train(model, optimizer) == train(plain_model, plain_optimizer)
    assert all(p.detach().numpy().shape == p.shape for p in model.parameters())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("budget", [None, 100_000, "60%"])
def test_after_the_session_everything_is_in_ordinary_memory_and_trains_on(budget, tier):
    model, optimizer = pretrained()
    with memfit.session(budget, tier):
        train(model, optimizer)
    assert_usable_as_before(model, optimizer)


@pytest.mark.parametrize("error", [ValueError("own"), KeyboardInterrupt(), SystemExit(3), RuntimeError("own")])
@pytest.mark.parametrize("budget", [100_000, "60%"])
def test_after_an_exception_everything_is_in_ordinary_memory_and_trains_on(budget, error):
    model, optimizer = pretrained()
    with pytest.raises(type(error)) as caught, memfit.session(budget, "disk"):
        train(model, optimizer)
        raise error
    assert caught.value is error
    assert_usable_as_before(model, optimizer)


def test_an_exception_in_mid_iteration_keeps_the_graph_alive_and_right():
    model, _ = pretrained()
    x = torch.ones(32, 64)
    model(x).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with pytest.raises(ValueError), memfit.session(60_000, "disk"):
        loss = model(x).square().mean()
        raise ValueError
    loss.backward()  # activations that were swapped out are back
    assert same_bits([p.grad for p in model.parameters()], plain)


def test_tensors_made_inside_the_session_live_on_after_it():
    with memfit.session(60_000, "disk"):
        made = [torch.full((1000,), float(i)) for i in range(40)]
        total = sum(t.sum() for t in made)
    assert all(is_ordinary(t) for t in made)
    assert all(torch.equal(t, torch.full((1000,), float(i))) for i, t in enumerate(made))
    assert total.item() == sum(range(40)) * 1000
    made[0].numpy()[:] = 5
    assert made[0].sum().item() == 5000


def test_a_tensor_that_numpy_sees_keeps_its_address_through_and_after_the_session():
    with memfit.session(60_000, "ram"):
        tensor = torch.zeros(1000)
        array = tensor.numpy()
        for _ in range(5):
            torch.zeros(10_000).add_(1)
        array[3] = 7
        assert tensor[3].item() == 7
    array[4] = 8
    assert tensor[4].item() == 8
    tensor.add_(1)
    assert array[3] == 8
    assert array.ctypes.data == tensor.data_ptr()

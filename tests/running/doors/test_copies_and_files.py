"""Checkpoints, deep copies, generators' states and other processes' tensors take bytes that are away along."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import memfit
from running.doors.outside import saved
from running.plainly import same_bits
from running.pressure import BUDGET, evicted, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


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


def test_a_checkpoint_twice_as_big_as_the_budget_is_saved_and_loaded(session, tmp_path):
    net, other = model(), torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt")
    assert same_bits(loaded, net.state_dict())
    other.load_state_dict(loaded)
    assert same_bits(other.state_dict(), net.state_dict())
    assert session.stats.peak_footprint_bytes <= BUDGET


def test_a_checkpoint_saved_in_the_session_loads_plainly(tmp_path):
    with memfit.session(BUDGET, "ram"):
        torch.save(model().state_dict(), tmp_path / "net.pt")
    assert same_bits(torch.load(tmp_path / "net.pt"), model().state_dict())


def test_a_mapped_checkpoint_is_read_without_a_copy_of_it(session, tmp_path):
    torch.save(model().state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", mmap=True)
    assert same_bits(loaded, model().state_dict())


def test_a_module_twice_as_big_as_the_budget_is_copied_deeply(session):
    net = model()
    twin = copy.deepcopy(net)
    assert same_bits(twin.state_dict(), net.state_dict())
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
        assert same_bits(fresh.state[parameter], optimizer.state[parameter])


def test_shared_memory_takes_the_bytes_along_and_is_left_alone(session):
    tensor = evicted()
    view = tensor[10:20]
    assert tensor.share_memory_() is tensor and tensor.is_shared()
    press()
    view.add_(1)
    assert tensor[10].item() == 11 and tensor[20].item() == 20
    module = model().share_memory()
    press()
    assert same_bits(module.state_dict(), model().state_dict())


def over_a_queue(tensor: torch.Tensor) -> torch.Tensor:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(tensor)
    return queue.get()


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

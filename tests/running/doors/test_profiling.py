"""torch.profiler works in a session, with all its options."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import memfit
from running.plainly import descend
from running.stress import compare

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
BUDGET = 1_000_000


def train() -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return [loss.item() for loss in descend(optimizer, lambda: net(torch.ones(4, 256)).square().mean(), 3)]


@contextmanager
def profiled(**options: bool):
    with profile(activities=[ProfilerActivity.CPU], **options) as made:
        yield made


@contextmanager
def session():
    with memfit.session(BUDGET, "ram") as made:
        yield made
        assert made.stats.bytes_in > 0


ALL = {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_modules": True}
ORDERS: dict[str, tuple[Callable, Callable]] = {"the session first": (session, profiled), "after": (profiled, session)}


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [pytest.param({"with_stack": True}, marks=pytest.mark.slow), ALL], ids=["stacks", "all"]
)
@pytest.mark.parametrize("order", ORDERS)
def test_training_is_profiled_with_stacks_and_the_same(order, options):
    with profiled(**options) as plainly:
        expected = train()
    with ExitStack() as stack:
        made = [stack.enter_context(make(**(options if make is profiled else {}))) for make in ORDERS[order]]
        assert train() == expected
    names = names_of(made[ORDERS[order].index(profiled)])
    assert "aten::addmm" in names and has_functions(names) == has_functions(names_of(plainly))


def names_of(made: profile) -> set[str]:
    return {event.name for event in made.events()}


def has_functions(names: set[str]) -> bool:
    """Return whether functions of Python are among the events: before torch 2.13 they are not."""
    return any("train" in name for name in names)


def shapes(made: profile) -> list[tuple[str, list[list[int]]]]:
    return [(event.name, event.input_shapes) for event in made.events() if event.name.startswith("aten::")]


@pytest.mark.parametrize("knows_slices", [False, True])
def test_the_shapes_of_every_op_are_noted_and_nothing_is_complained_of(knows_slices, capfd):
    """It asks for the address of every input: of views of what is away too, and of what another op is to bring in."""
    if knows_slices:
        with compare.stressed("split"), session():
            train()
    with profiled(record_shapes=True) as plainly:
        train()
    with session(), profiled(record_shapes=True) as made:
        train()
    assert shapes(made) == shapes(plainly)
    assert "memfit" not in capfd.readouterr().err


def test_modules_and_optimizers_are_themselves_again_after_the_profile():
    before = torch.nn.Module.__call__, torch.optim.Optimizer._optimizer_step_code
    with session():
        with profiled(with_stack=True):
            train()
        assert (torch.nn.Module.__call__, torch.optim.Optimizer._optimizer_step_code) == before
        made = profile(with_stack=True)
        made.start()
    assert (torch.nn.Module.__call__, torch.optim.Optimizer._optimizer_step_code) == before
    made.stop()

"""A kernel that the program registers for one of torch's operators is called as often as plainly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent

import pytest
import torch
from torch import Tensor

import memfit
from memfit.running import engine
from running.paging.workloads import OTHERS

pytestmark = [pytest.mark.usefixtures("on_its_own"), pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
WIDTH = 160
NAMES = ["sin", "tanh"]  # of the second, memfit has a kernel of its own in front of torch's
UNIT = WIDTH * WIDTH * 4  # bytes of a matrix


@contextmanager
def registered(name: str, calls: list[tuple[Tensor, int]]) -> Iterator[None]:
    """Take cosines for what `name` computes, and keep what was given, with its address."""

    def kernel(x: Tensor) -> Tensor:
        calls.append((x, x.data_ptr()))
        return torch.ops.aten.cos.default(x)

    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def train(name: str, steps: int) -> list[float]:
    torch.manual_seed(0)
    weights = [(0.1 * torch.randn(WIDTH, WIDTH)).requires_grad_() for _ in range(5)]
    optimizer, losses = torch.optim.SGD(weights, 0.01), []
    for _ in range(steps):
        x = torch.ones(WIDTH, WIDTH)
        for weight in weights:
            x = getattr(torch, name)(x @ weight)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture(params=["", "recompute", "split"])
def _stressed(request) -> Iterator[None]:
    native = engine.load()
    native.set_stress(request.param)
    yield
    native.set_stress(os.environ.get("MEMFIT_STRESS", ""))


@pytest.mark.usefixtures("_stressed")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["60%", 28 * UNIT])
def test_one_that_was_there_before_the_session(name, budget):
    plainly, calls = [], []
    with registered(name, plainly):
        expected = train(name, 4)
    with registered(name, calls), memfit.session(budget, "ram") as session:
        assert train(name, 4) == expected
        assert session.stats.evictions > 0
        assert all(x.data_ptr() == address for x, address in calls)
    assert len(calls) == len(plainly) == 20
    assert all(torch.equal(x, other) for (x, _), (other, _) in zip(calls, plainly, strict=True))


@pytest.mark.usefixtures("_stressed")
@pytest.mark.parametrize("name", NAMES)
def test_one_that_comes_in_the_session_and_goes(name):
    def three_times(calls: list[tuple[Tensor, int]]) -> list[list[float]]:
        before = train(name, 2)
        with registered(name, calls):
            meanwhile = train(name, 2)
        return [before, meanwhile, train(name, 2)]

    plainly, calls = [], []
    expected = three_times(plainly)
    with memfit.session(18 * UNIT, "ram"):
        assert three_times(calls) == expected
    assert len(calls) == len(plainly) == 10


FIRST = """
    import torch, memfit
    library = torch.library.Library("aten", "IMPL")
    library.impl("tanh", lambda x: torch.ops.aten.cos.default(x), "CPU")
    x = torch.linspace(0, 1, 1000)
    with memfit.session(1 << 20, "ram"):
        assert torch.equal(torch.tanh(x), torch.cos(x))
    library._destroy()
    plainly = torch.tanh(x)
    assert torch.allclose(plainly, (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()))
    with memfit.session(1 << 20, "ram"):
        assert torch.equal(torch.tanh(x), plainly)
"""


@pytest.mark.long
def test_one_that_is_taken_back_after_the_first_session():
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", dedent(FIRST)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_those_that_torch_registers_in_python_are_its_own():
    torch.func.vmap(torch.exp)(torch.ones(3))  # functorch registers its rules the first time
    if "_functorch" not in torch._C._dispatch_dump("aten::nll_loss_backward"):
        pytest.skip("this torch has no such rule")
    work = next(work for work in OTHERS if work.name == "cross_entropy")
    expected = [result.detach().numpy().tobytes() for result in work.run(*work.make())]
    with memfit.session(3 << 20, "ram", plan=False, split="never") as session:  # what is mapped is an op of torch's own
        assert [session.read_bytes(result.untyped_storage()) for result in work.run(*work.make())] == expected
    assert session.stats.mapped_ops > 0

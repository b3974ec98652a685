"""A loop without an optimizer of torch's says where its iterations end."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.errors import UsageError
from running.plainly import same_bits

pytestmark = pytest.mark.timeout(60)


def train(steps: int, session: memfit.Session | None = None) -> list[torch.Tensor]:
    """Plain gradient descent by hand, in which few ops repeat themselves: too few for a period to be found."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(6)]
    for step in range(steps):
        value = torch.ones(64, 64)
        for weight in weights:
            value = (value @ weight).tanh()
        value.square().mean().backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
        if session is not None:
            session.end_iteration()
            assert (session.stats.budget_bytes > 0) == (step > 0), "a share holds from the end of the second"
    return [weight.detach() for weight in weights]


@pytest.mark.usefixtures("on_its_own")
def test_a_share_holds_from_the_end_of_the_first_whole_iteration_and_changes_no_bit():
    plainly = train(4)
    with memfit.session("70%", "ram") as session:
        limited = train(4, session)
    assert session.why_no_limit == "" and session.stats.iterations == 4 and session.stats.evictions > 0
    assert same_bits(plainly, limited)


@pytest.mark.usefixtures("on_its_own")
def test_without_a_word_so_short_a_loop_has_no_limit():
    with memfit.session("70%", "ram") as session:
        train(4)
    assert session.why_no_limit != ""


def test_where_an_optimizer_steps_its_steps_are_the_ends():
    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.SGD([weight], 0.1)
    with memfit.session(None) as session:
        for _ in range(3):
            (weight * 2).sum().backward()
            optimizer.step()
            session.end_iteration()
    assert session.stats.iterations == 3


def test_an_ended_session_has_no_iteration_to_end():
    with memfit.session(None) as session:
        pass
    with pytest.raises(UsageError, match="has ended"):
        session.end_iteration()


def steps_of(optimizers: list[torch.optim.Optimizer], order: list[int], before=lambda: None) -> int:
    """The iterations that a session counts when the optimizers step in this order."""
    with memfit.session(None) as session:
        before()
        for number in order:
            for group in optimizers[number].param_groups:
                for weight in group["params"]:
                    (weight * 2).sum().backward()
            optimizers[number].step()
    return session.stats.iterations


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 0, 0, 1, 0, 0, 1, 0, 0, 1], 3),  # a critic's steps, and then a generator's, three times
        ([0, 1, 0, 1], 2),
        ([0, 0, 0, 1, 1], 5),  # one after the other
        ([0, 0, 1, 0, 2, 1, 0, 2], 2),
    ],
)
def test_iterations_are_the_steps_of_the_optimizer_that_ends_them(order, expected):
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(8))], 0.1) for _ in range(max(order) + 1)]
    assert steps_of(optimizers, order) == expected


def test_an_evaluation_before_the_first_step_is_no_iteration():
    net = torch.nn.Linear(8, 8)

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(3):
                net(torch.ones(8, 8))

    assert steps_of([torch.optim.SGD(net.parameters(), 0.1)], [0, 0], evaluate) == 2

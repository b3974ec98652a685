"""Under a plan a kernel's call is at once where the plan has nothing to do for it, and the plan is followed."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from memfit import Stats
from memfit.running.session import Session
from running.doors.generated import add, kernel
from running.plainly import same_bits
from running.planned.training import plan_at_fixed_steps

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

PART = 1 << 16  # elements of a state, and of an activation


def its_own(step: int, state: Tensor, others: list[Tensor]) -> Tensor:
    """Return the state that a call is for."""
    return state


def beside_states(call, steps: int, *, choose=its_own, after=lambda step: None) -> list[Tensor]:
    """Train a small network beside states, to which a kernel adds between its layers and after them; return everything.

    `choose` may give a call another target, among what the step has made and all states; `after` is told of each step.
    """
    torch.manual_seed(0)
    network = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    states, addend, batch = (
        [torch.zeros(PART) for _ in range(6)],
        torch.full((PART,), 0.01),
        torch.randn(PART // 256, 256),
    )
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        made = [batch]
        for number, layer in enumerate(network):
            made.append(layer(made[-1]))
            for state in states[:3] if number % 2 else []:
                call(choose(step, state, [*made[1:], *states]), addend)
        loss = made.pop().square().mean()
        for state in states:
            for _ in range(2):
                call(choose(step, state, [*made[1:], *states]), addend)
        del made
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(step)
    return [*states, *(each.detach().clone() for each in network.parameters()), torch.tensor(losses)]


@pytest.mark.long
@pytest.mark.parametrize("moves", ["swap", "joint"])
def test_under_a_plan_a_call_is_at_once_where_the_plan_has_nothing_to_do(monkeypatch, moves):
    """And the plan goes on with the op after it: what leaves after the call does."""
    plan_at_fixed_steps(monkeypatch)
    steps, seen = 16, list[tuple[int, Stats]]()
    plain = beside_states(kernel(add), steps)
    with Session("40%", "ram", device="cpu", moves=moves) as session:
        within = beside_states(
            kernel(add), steps, after=lambda step: seen.append((session.planned_iterations, session.stats))
        )
    assert same_bits(within, plain)
    pairs = zip(seen, seen[1:], strict=False)
    planned = [(was, now) for (before, was), (count, now) in pairs if count > before]
    assert len(planned) >= 6
    assert all(now.ops_at_once - was.ops_at_once >= 12 for was, now in planned)
    assert all(now.swaps + now.discards > was.swaps + was.discards for was, now in planned)
    assert moves == "joint" or all(now.evictions == was.evictions for was, now in planned[1:])
    last = seen[-1][1]
    assert (last.derailments, last.unplanned_ops, last.missing_ops, last.unseen_writes) == (0, 0, 0, 0)


def test_a_call_at_once_that_the_plan_does_not_have_is_an_op_like_any(monkeypatch):
    """One more call in one iteration, one less in another: bits stay, and the plan is found again."""
    plan_at_fixed_steps(monkeypatch)

    def train() -> list[Tensor]:
        op, extra, calls = kernel(add), torch.zeros(PART), 0

        def call(state: Tensor, addend: Tensor) -> None:
            nonlocal calls
            calls += 1
            if calls == 12 * 24 + 5:
                kernel(lambda target, source: target.copy_(source))(extra, addend)
            if calls != 14 * 24 + 3:
                op(state, addend)

        return [*beside_states(call, 20), extra]

    plain = train()
    with Session("60%", "ram", device="cpu", moves="swap") as session:
        within = train()
        assert session.planned_iterations >= 8 and session.stats.derailments == 2
        assert session.stats.unplanned_ops >= 1 and session.stats.missing_ops >= 1 and session.stats.ops_at_once > 0
    assert same_bits(within, plain)


@pytest.mark.long
@pytest.mark.parametrize(
    ("moves", "budget", "share", "seed", "planned"),
    [("swap", "30%", 0.4, 0, 4), ("joint", "40%", 0.1, 1, 20)],
)
def test_a_plans_call_at_once_may_be_given_what_nobody_planned(monkeypatch, moves, budget, share, seed, planned):
    """A state that leaves just then; an activation that is dropped later, or one from which a dropped one is made."""
    plan_at_fixed_steps(monkeypatch)
    steps, op = 60, kernel(add)

    def train(**told) -> list[Tensor]:
        draws = random.Random(seed)

        def choose(step: int, state: Tensor, others: list[Tensor]) -> Tensor:
            return state if step < 10 or draws.random() > share else draws.choice(others)

        return beside_states(op, steps, choose=choose, **told)

    plain = train()
    with Session(budget, "ram", device="cpu", moves=moves) as session:
        within = train()
        assert session.planned_iterations >= planned and session.stats.ops_at_once > 10 * steps
        assert session.stats.swaps > 0 and (session.stats.discards > 0) == (moves == "joint")
    assert same_bits(within, plain)


def test_an_iteration_that_ends_by_its_period_may_end_with_a_call(monkeypatch):
    """No optimizer tells of its end: the next op is the first of the plan's."""
    plan_at_fixed_steps(monkeypatch)

    def run() -> list[Tensor]:
        op, states, one = kernel(add), [torch.zeros(PART) for _ in range(6)], torch.ones(PART)
        weight = torch.ones(PART, requires_grad=True)
        for _ in range(120):
            for state in states:
                op(state, one)
                op(state, one)
                torch.add(state, one).sum()
            (weight * one).sum().backward()
            states[0].add_(weight.grad)
            weight.grad = None
            op(states[0], one)
        return states

    plain = run()
    with Session("60%", "ram", device="cpu") as session:
        within = run()
        stats = session.stats
        assert session.planned_iterations > 20 and stats.ops_at_once > 100
    assert same_bits(within, plain)
    assert (stats.derailments, stats.unplanned_ops, stats.missing_ops) == (0, 0, 0)

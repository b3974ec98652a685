"""A share of the training's peak survives a larger evaluation: the limit gives way for an op, and is back after it."""

import random

import pytest
import torch
from torch import nn

from memfit import BudgetError, session
from memfit.running import engine
from running.children import Child
from running.plainly import descend

pytestmark = pytest.mark.usefixtures("on_its_own")


def train_and_evaluate(evaluate: int = 4096) -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for epoch in range(3):
        steps = descend(optimizer, lambda: net(torch.randn(256, 64)).square().mean(), 3)
        losses += [loss.item() for loss in steps]
        if epoch:
            with torch.no_grad():
                losses.append(net(torch.randn(evaluate, 64)).square().mean().item())
    return losses


@pytest.mark.unmapped
def test_a_larger_evaluation_is_given_what_it_needs_and_says_so_once(capfd):
    plain = train_and_evaluate()
    with session("80%", "ram", device="cpu") as s:
        limited = train_and_evaluate()
        after, budget = s.stats.footprint_bytes, s.stats.budget_bytes
    assert limited == plain
    assert s.stats.growths > 0 and s.stats.peak_growth_bytes > 0
    assert budget < s.stats.peak_footprint_bytes <= budget + s.stats.peak_growth_bytes
    assert after <= budget, "the limit is back"
    said = [line for line in capfd.readouterr().err.splitlines() if "is exceeded by" in line]
    assert len(said) == 1 < s.stats.growths and "test_growth.py:" in said[0]


@pytest.mark.unmapped
def test_without_growth_it_is_an_error():
    with pytest.raises(BudgetError), session("80%", "ram", device="cpu", grow=False):
        train_and_evaluate()


@pytest.mark.unmapped
def test_bytes_hold_unless_growth_is_asked_for():
    budget = 600_000
    with pytest.raises(BudgetError), session(budget, "ram", device="cpu"):
        train_and_evaluate()
    with session(budget, "ram", device="cpu", grow=True) as s:
        assert train_and_evaluate() == train_and_evaluate()
    assert s.stats.growths > 0


def test_nothing_grows_where_all_fits():
    with session("80%", "ram", device="cpu") as s:
        train_and_evaluate(evaluate=128)
    assert s.stats.growths == 0 and s.stats.peak_footprint_bytes <= s.stats.budget_bytes


@pytest.mark.unstressed("what there is room for")
def test_the_limit_rises_at_once_beyond_what_cannot_move_and_lies_across_it():
    with session(4_000_000, "ram", device="cpu", grow=True, plan=False, map="never") as s:
        pinned = [torch.ones(375_000).numpy() for _ in range(2)]
        engine.load().set_budget(2_000_000)
        doubled = [torch.full((1000,), float(i)) * 2 for i in range(4)]
    assert [tensor[0].item() for tensor in doubled] == [0, 2, 4, 6] and len(pinned) == 2
    assert 0 < s.stats.growths < 20


def test_an_op_before_the_iteration_that_needed_more_than_the_limit_is_told_of(capfd):
    torch.linalg.qr(torch.randn(8, 8))
    with session("80%", "ram", device="cpu"):
        torch.linalg.qr(torch.randn(500, 500))
        train_and_evaluate(evaluate=128)
    (told,) = [line for line in capfd.readouterr().err.splitlines() if "ran before the first whole iteration" in line]
    assert "aten::linalg_qr" in told and "test_growth.py:" in told and "if it runs again it is given that" in told


def grow_at_random(seed: int) -> int:
    """Make, delete and join tensors, some of which cannot move, in a budget that gives way; return how often it did."""
    draw = random.Random(seed)
    budget = draw.choice([2048, 4096, 8192, 16384, 65536, 200_000])
    with session(budget, "ram", device="cpu", grow=True, plan=False, map=draw.choice(["never", "auto"])) as s:
        kept: list[torch.Tensor] = []
        pinned: list[object] = []
        for turn in range(120):
            kind, size = draw.random(), draw.choice([4, 16, 64, 100, 250, 1000, 3000, budget // 8, budget // 2])
            if kind < 0.6 or not kept:
                kept.append(torch.full((size,), float(turn)))
            elif kind < 0.8:
                kept.pop(draw.randrange(len(kept)))
            elif kind < 0.83:
                pinned.append(draw.choice(kept).numpy())
            else:
                kept.append(torch.cat([draw.choice(kept) for _ in range(draw.randrange(1, 6))]))
            torch.ones(2).add_(1)
            assert pinned or s.stats.footprint_bytes <= budget, "the limit is back"
    return s.stats.growths


def grow_at_random_often() -> str:
    return "grown" if sum(grow_at_random(seed) for seed in range(60)) > 60 else "seldom grown"


@pytest.mark.long
def test_what_the_limit_gave_way_for_ends_with_the_session_whatever_lies_beyond():
    assert Child(grow_at_random_often).answer() == "grown"

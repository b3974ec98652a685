"""A share of the training's peak survives a larger evaluation: the limit gives way for an op, and is back after it."""

import pytest
import torch
from torch import nn

from memfit import BudgetError, session
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
    assert said and len(said) == len(set(said)) <= 5 and all("test_growth.py:" in line for line in said)


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


def test_an_op_before_the_iteration_that_needed_more_than_the_limit_is_told_of(capfd):
    torch.linalg.qr(torch.randn(8, 8))
    with session("80%", "ram", device="cpu"):
        torch.linalg.qr(torch.randn(500, 500))
        train_and_evaluate(evaluate=128)
    (told,) = [line for line in capfd.readouterr().err.splitlines() if "ran before the first whole iteration" in line]
    assert "aten::linalg_qr" in told and "test_growth.py:" in told and "if it runs again it is given that" in told

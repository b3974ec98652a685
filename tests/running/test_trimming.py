"""A result that needs less than half of its storage gets a smaller one: above all reduced losses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import memfit
from memfit.ir import Trace
from running.plainly import as_plainly
from running.planned.training import plan_at_fixed_steps

pytestmark = pytest.mark.usefixtures("on_its_own")
SIDE = 200  # of a square of numbers
TERMS = 4 * SIDE * SIDE  # bytes
Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    plan_at_fixed_steps(monkeypatch)


def soft_margin(x: Tensor, y: Tensor) -> Tensor:
    return F.soft_margin_loss(x, 2 * y.round() - 1)


def summed(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y, reduction="sum")


def losses_and_gradients(loss_of: Loss, least_bytes: int) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.rand(SIDE, SIDE, requires_grad=True)
    y = torch.rand(SIDE, SIDE)
    loss = loss_of(x, y)
    assert loss.untyped_storage().nbytes() == least_bytes
    loss.backward()
    return [loss.detach().clone(), x.grad]


@pytest.mark.parametrize("loss_of", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, soft_margin, summed])
def test_a_reduced_loss_has_one_number_in_its_storage(loss_of: Loss) -> None:
    expected = losses_and_gradients(loss_of, TERMS)  # should torch do this itself one day, trimming can go
    with memfit.session(64 << 20, "ram", device="cpu", plan=False) as session:
        found = losses_and_gradients(loss_of, 4)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert session.stats.trims == 1


def test_what_was_trimmed_is_not_in_memory_any_more() -> None:
    with memfit.session(64 << 20, "ram", device="cpu", plan=False) as session:
        x, y = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        before = session.stats
        loss = F.mse_loss(x, y)
        after = session.stats
    assert after.live_bytes - before.live_bytes == 4
    assert after.resident_bytes - before.resident_bytes < 4096
    assert after.peak_live_bytes >= before.live_bytes + TERMS, "the terms were never there"
    assert loss.item() > 0


def test_it_leaves_when_there_is_no_room_and_comes_back() -> None:
    """The new storage is one like any other."""
    expected = torch.nn.functional.mse_loss(torch.full((SIDE, SIDE), 2.0), torch.zeros(SIDE, SIDE))
    with memfit.session(5 * TERMS, "ram", device="cpu", plan=False) as session:
        losses = [F.mse_loss(torch.full((SIDE, SIDE), 2.0), torch.zeros(SIDE, SIDE)) for _ in range(40)]
        assert all(torch.equal(loss, expected) for loss in losses)
        mean = torch.stack(losses).mean()
    assert session.stats.trims == 40 and torch.equal(mean, expected)


def test_a_loss_of_its_terms_is_not_touched() -> None:
    with memfit.session(64 << 20, "ram", device="cpu", plan=False) as session:
        x = torch.rand(SIDE, SIDE)
        terms = F.mse_loss(x, x + 1, reduction="none")
        row = x[0]
        assert terms.untyped_storage().nbytes() == row.untyped_storage().nbytes() == TERMS
        row.as_strided((SIDE, SIDE), (SIDE, 1)).zero_()  # a view has all of its base
        assert not x.any()
    assert session.stats.trims == 0


def first_rows(x: Tensor) -> Tensor:
    """The result of one op, `lstsq`, that is a view of the first rows of what the op has computed."""
    return torch.linalg.lstsq(x, torch.ones(len(x), 9), driver="gelsd").solution


def test_a_part_of_a_storage_keeps_its_numbers() -> None:
    torch.manual_seed(0)
    x = torch.rand(3000, 5)
    expected = first_rows(x)
    assert expected.untyped_storage().nbytes() > 2 * expected.nbytes
    with memfit.session(64 << 20, "ram", device="cpu", plan=False) as session:
        found = first_rows(x.clone())
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    assert torch.equal(found, expected) and session.stats.trims <= 1


def step_of(device: str) -> Callable[[], Tensor]:
    with torch.device(device):
        model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE))
        x, y = torch.ones(SIDE, SIDE), torch.zeros(SIDE, SIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def require_one_number(trace: Trace) -> None:
    """The terms of the loss are alive within its op, and its number is until the next one is there."""
    loss = next(k for k, op in enumerate(trace.ops) if op.name == "aten::mse_loss")
    made = [s for s in trace.storages if s.alloc in (loss, loss + 1) and not s.born_before]
    lives = {s.size_bytes: s.free - loss for s in made if s.alloc == loss or s.size_bytes == 4}
    assert lives[TERMS] <= 1 < lives[4]


def test_a_trace_has_the_terms_within_their_op_alone_and_the_number_on() -> None:
    require_one_number(memfit.record(step_of("cpu")))


def trained() -> list[Tensor]:
    torch.manual_seed(0)
    step = step_of("cpu")
    return [step().detach().clone() for _ in range(16)]


@pytest.mark.long
@pytest.mark.unstressed("plans")
@pytest.mark.usefixtures("steady")
def test_plans_hold() -> None:
    stats = as_plainly(trained, "70%", "ram").stats
    assert stats.trims == 16 and stats.plans > 0 and stats.plan_mismatches == 0

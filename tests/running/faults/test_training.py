"""A tier that fails in the midst of training, of adoption or of a share's beginning; interrupts of the latter two."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.errors import TierError
from memfit.running import engine
from running.faults.rows import BUDGET, faulty, fill, holds
from running.helpers_training import mlp
from running.plainly import same_bits
from running.pressure import is_ordinary

pytestmark = pytest.mark.timeout(120)


def step(model: nn.Module, x: Tensor) -> float:
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss.item()


def update(model: nn.Module) -> None:
    for parameter in model.parameters():
        insistently(lambda p=parameter: p.data.sub_(p.grad, alpha=0.1))


FAILURES: list[str] = []


def insistently(action: Callable[[], object]) -> object:
    """Run `action`, which can be repeated, until it does not fail."""
    for _ in range(3):
        try:
            return action()
        except RuntimeError as error:
            FAILURES.append(str(error))
    return action()


def train(steps: int = 4) -> tuple[list[object], list[Tensor]]:
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(32, 64)
    losses = []
    for _ in range(steps):
        losses.append(insistently(lambda: step(model, x)))
        update(model)
    return losses, [p.detach() for p in model.parameters()]


@pytest.mark.unstressed("how often the tier is written to and read")
@pytest.mark.parametrize("fault", ["fail_write", "fail_read", "corrupt_read"])
def test_training_that_repeats_what_failed_gets_the_plain_result(tmp_path, fault):
    plain_losses, plain_weights = train()
    failed = []
    for nth in (1, 2, 3, 5, 8, 12, 17, 20):
        FAILURES.clear()
        with memfit.session(BUDGET, faulty(tmp_path, checked=True, **{fault: nth})):
            losses, weights = insistently(train)
        assert losses == plain_losses
        assert same_bits(weights, plain_weights)
        failed += FAILURES
    assert 3 <= len(failed) <= 8  # one each, but for writes that were not needed and faults that never came
    assert all("injected" in message or "checksum" in message for message in failed)


@pytest.mark.parametrize("fault", ["fail_write", "fail_read"])
def test_an_optimizer_step_that_fails_for_good_is_a_tier_error_and_keeps_what_can_be_kept(tmp_path, fault):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(TierError, match="injected fault"),
        memfit.session(BUDGET, faulty(tmp_path, repeat=True, **{fault: 30}), plan=False),
    ):
        for _ in range(50):
            step(model, torch.ones(32, 64))
            optimizer.step()
    tensors = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    whole = [t for t in tensors if is_ordinary(t)]
    assert all(t.isfinite().all() for t in whole)
    assert (len(whole) == len(tensors)) == (fault == "fail_write")  # what is away cannot be read back


# --- adoption and the switch to a share


def test_a_write_that_fails_while_a_model_is_adopted_leaves_no_session_and_the_model_whole(tmp_path, rows):
    fill(rows, 12)
    with (
        pytest.raises(TierError, match="write failed"),
        memfit.session(BUDGET, faulty(tmp_path, fail_write=2, repeat=True)),
    ):
        pytest.fail("entered")
    assert not engine.load().active()
    assert all(is_ordinary(tensor) and holds(tensor, value) for value, tensor in enumerate(rows))


@pytest.mark.unstressed("how often the tier is written to and read")
def test_a_write_that_fails_when_a_share_takes_effect_does_not_end_the_limit(tmp_path):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    failures = []
    with memfit.session("60%", faulty(tmp_path, fail_write=1)) as session:
        for _ in range(5):
            step(model, torch.ones(32, 64))
            try:
                optimizer.step()
            except TierError as error:
                failures.append(str(error))
        assert len(failures) == 1 and "write failed" in failures[0]
        assert session.stats.budget_bytes > 0
        assert session.stats.footprint_bytes <= session.stats.budget_bytes


# --- interrupts where it hurts


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_while_a_session_begins_or_ends_leaves_everything_in_ordinary_memory(monkeypatch, call, rows):
    fill(rows, 12)
    calls = []
    get_objects = gc.get_objects

    def interrupted() -> list[object]:
        calls.append(None)
        if len(calls) == call:
            raise KeyboardInterrupt
        return get_objects()

    monkeypatch.setattr(gc, "get_objects", interrupted)
    with pytest.raises(KeyboardInterrupt), memfit.session(BUDGET, "ram"):
        rows[0].add_(0)
    assert not engine.load().active()
    assert all(is_ordinary(tensor) and holds(tensor, value) for value, tensor in enumerate(rows))

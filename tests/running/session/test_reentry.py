"""A session is one `with` block: entering it again is refused, and leaves it as it is."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import torch

import memfit
from memfit.errors import UsageError
from memfit.running.session import api


def test_entering_a_running_session_again_is_refused_and_the_session_runs_on():
    with memfit.session("1MiB", device="cpu") as session:
        kept = torch.full((1000,), 3.0)
        with pytest.raises(UsageError, match="this session is running already"), session:
            pytest.fail("the inner block was entered")
        before = session.stats.ops
        assert (kept + 1).sum().item() == 4000
        assert session.stats.ops > before and session.stats.budget_bytes == 1 << 20
    assert kept.sum().item() == 3000


def test_a_session_that_refused_to_be_entered_again_ends_with_its_own_block():
    session = memfit.session("1MiB", device="cpu")
    with session, pytest.raises(UsageError), contextlib.ExitStack() as stack:
        stack.enter_context(session)
    with memfit.session("1MiB", device="cpu"):
        assert torch.ones(10).sum().item() == 10


def test_another_session_is_refused_too_and_the_running_one_runs_on():
    with memfit.session("1MiB", device="cpu") as session:
        with pytest.raises(UsageError, match="active already"), memfit.session("1MiB", device="cpu"):
            pytest.fail("the inner block was entered")
        before = session.stats.ops
        torch.ones(10).sum()
        assert session.stats.ops > before


def test_an_ended_session_is_not_entered_again():
    with memfit.session("1MiB", device="cpu") as session:
        torch.ones(10)
    with pytest.raises(UsageError, match="this session has ended"), session:
        pytest.fail("the block was entered")


@pytest.mark.parametrize("same", [True, False], ids=["the same session", "two sessions"])
def test_of_two_threads_that_enter_at_once_one_is_refused_and_the_other_runs_on(same, monkeypatch):
    both_enter, refused, entered = threading.Barrier(2), [], []

    def slow(*arguments):
        time.sleep(0.05)
        return made(*arguments)

    made = api.Running
    monkeypatch.setattr(api, "Running", slow)
    one = memfit.session("1MiB", device="cpu")
    sessions = [one, one if same else memfit.session("1MiB", device="cpu")]

    def enter(session):
        both_enter.wait(10)
        try:
            with session:
                assert torch.ones(10).sum().item() == 10
                time.sleep(0.2)
                assert torch.ones(10).sum().item() == 10
                entered.append(session.stats.ops)
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=enter, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 1 and len(entered) == 1 and entered[0] >= 4
    with memfit.session("1MiB", device="cpu"):
        assert torch.ones(10).sum().item() == 10

"""A session is one `with` block: entering it again is refused, and leaves it as it is."""

from __future__ import annotations

import contextlib

import pytest
import torch

import memfit
from memfit.errors import UsageError


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

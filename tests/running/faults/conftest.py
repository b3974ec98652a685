"""Shared by the tests of what fails: each begins without a session, and leaves none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

import memfit
from memfit.running import engine
from running.helpers_training import others_hidden


@pytest.fixture(autouse=True)
def on_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a test that fails from failing others: end the session it left active."""
    begun: list[memfit.Session] = []
    enter = memfit.Session.__enter__
    monkeypatch.setattr(memfit.Session, "__enter__", lambda session: begun.append(session) or enter(session))
    with others_hidden():
        yield
        left = engine.load().active()
        if left:
            engine.load().stop()
            begun[-1]._contexts.close()
    assert not left


@pytest.fixture
def rows() -> Iterator[list[Tensor]]:
    made: list[Tensor] = []
    yield made
    made.clear()  # a failed test's traceback keeps the list

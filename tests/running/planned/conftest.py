"""Plans are there at fixed steps where a test asks for it."""

import pytest

from running.planned.training import plan_at_fixed_steps


@pytest.fixture
def steady(monkeypatch):
    plan_at_fixed_steps(monkeypatch)

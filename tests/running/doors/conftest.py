"""Shared by the tests of the doors."""

from __future__ import annotations

import pytest

import memfit
from running.pressure import BUDGET


@pytest.fixture(params=["ram", "disk"])
def session(request):
    with memfit.session(BUDGET, request.param) as session:
        yield session

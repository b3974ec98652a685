"""Processes that wait for each other are given time on a busy machine."""

import pytest

from running import children


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(children, "PATIENCE", 150)

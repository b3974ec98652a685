"""Sessions in which storages are mapped, by both ways to be told of a touch and on each sort of tier."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

import memfit
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec

MIB = 1 << 20


@pytest.fixture(params=["userfaultfd", "signals"])
def mechanism(request) -> str:
    return request.param


@pytest.fixture
def paged(mechanism, tmp_path: Path) -> Callable:
    """Return a function that begins a session with a disk tier: paged("64 MiB"), or with a tier of its own.

    Ops do not run in slices there, which would need nothing mapped.
    """

    @contextmanager
    def begin(budget, tier=None, *, when="auto", dies_after=0, **settings):
        settings = {"plan": False, "split": "never", **settings}
        with memfit.session(budget, tier or TierSpec("disk", str(tmp_path)), map=when, **settings) as session:
            engine.load().set_mapping(when, mechanism, dies_after)
            yield session

    return begin

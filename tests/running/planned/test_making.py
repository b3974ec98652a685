"""How long training waits for a plan that is made beside it."""

from __future__ import annotations

import threading

import pytest

from memfit import session
from memfit.errors import UsageError
from memfit.running.planned.making import Made, Making, patience


def test_training_waits_two_seconds_unless_it_is_told_otherwise(monkeypatch):
    found = {}
    for named in ("", "0", " 7.5", "inf"):
        monkeypatch.setenv("MEMFIT_PATIENCE", named)
        found[named] = patience()
    assert found == {"": 2.0, "0": 0.0, " 7.5": 7.5, "inf": threading.TIMEOUT_MAX}
    monkeypatch.delenv("MEMFIT_PATIENCE")
    assert patience() == 2.0


@pytest.mark.parametrize("named", ["soon", "-1", "nan", "2s"])
def test_what_is_no_number_of_seconds_is_refused_when_the_session_is_made(monkeypatch, named):
    monkeypatch.setenv("MEMFIT_PATIENCE", named)
    with pytest.raises(UsageError, match=f"MEMFIT_PATIENCE is '{named}'"):
        session("1 GiB", "ram")


def test_a_plan_in_the_making_is_waited_for_as_long_as_it_was_said_and_ends_when_it_is_cancelled():
    made = Made(key="some")
    making = Making(lambda stop: made if stop.wait(60) else Made())
    assert not making.done() and not making.done(0.05)
    assert making.cancel() == made and making.done()


def test_a_making_that_fails_says_why(capfd):
    making = Making(lambda stop: 1 / 0)
    assert making.done(None) and making.result() == Made(failed=making.result().failed)
    assert making.result().failed.startswith("ZeroDivisionError: division by zero at ") and not capfd.readouterr().err

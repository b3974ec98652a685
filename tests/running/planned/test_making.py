"""How long training waits for a plan that is made beside it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from memfit import session
from memfit.errors import BudgetError, UsageError
from memfit.planning.joint.plan import JointPlan
from memfit.running.planned import engine_plan
from memfit.running.planned.making import Made, Making, patience
from running.plainly import same_bits
from running.planned.networks import WORKS
from running.planned.training import inside, train


def test_training_waits_two_seconds_and_on_a_gpu_not_at_all_unless_it_is_told_otherwise(monkeypatch):
    found = {}
    for named in ("", "0", " 7.5", "inf"):
        monkeypatch.setenv("MEMFIT_PATIENCE", named)
        found[named] = patience("cpu"), patience("cuda")
    most = threading.TIMEOUT_MAX
    assert found == {"": (2.0, 0.0), "0": (0.0, 0.0), " 7.5": (7.5, 7.5), "inf": (most, most)}
    monkeypatch.delenv("MEMFIT_PATIENCE")
    assert (patience("cpu"), patience("cuda")) == (2.0, 0.0)


@pytest.mark.parametrize("named", ["soon", "-1", "nan", "2s"])
def test_what_is_no_number_of_seconds_is_refused_when_the_session_is_made(monkeypatch, named):
    monkeypatch.setenv("MEMFIT_PATIENCE", named)
    with pytest.raises(UsageError, match=f"MEMFIT_PATIENCE is '{named}'"):
        session("1 GiB", "ram")


def test_a_plan_in_the_making_is_waited_for_as_long_as_it_was_said_and_ends_when_it_is_cancelled():
    made = Made(key="some")
    making = Making(lambda making: made if making.stop.wait(60) else Made())
    assert not making.done() and not making.done(0.05)
    making.wait(0.05)
    assert not making.done()
    assert making.cancel() == made and making.done()


def test_training_goes_on_while_a_search_takes_longer_than_it_waits_for():
    made = Made(key="some")

    def long(making: Making) -> Made:
        making.takes_longer()
        return made if making.stop.wait(60) else Made()

    making = Making(long)
    making.wait(None)
    assert not making.done()
    assert making.cancel() == made


def test_what_was_waited_for_has_ended_when_it_is_made():
    class Lingering(Making):
        def _run(self) -> None:
            super()._run()
            threading.Event().wait(0.02)  # what a busy machine may make of the thread's end

    for _ in range(3):
        making = Lingering(lambda _: Made(key="some"))
        making.wait(None)
        assert making.done() and making.result().key == "some"


def test_a_making_that_fails_says_why(capfd):
    making = Making(lambda _: 1 / 0)
    assert making.done(None) and making.result() == Made(failed=making.result().failed)
    assert making.result().failed.startswith("ZeroDivisionError: division by zero at ") and not capfd.readouterr().err


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_collected_while_training_waits_and_as_before_from_then_on(monkeypatch, is_enabled):
    begun, waits, found, disable = threading.Event(), threading.Event(), list[bool](), gc.disable

    def make(making: Making) -> Made:
        begun.set()
        assert waits.wait(60)
        found.append(gc.isenabled())
        making.takes_longer()
        return Made() if making.stop.wait(60) else Made(failed="nobody stopped it")

    was = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        making = Making(make)
        assert begun.wait(60)
        making.wait(0)
        assert gc.isenabled() is is_enabled  # training no longer waits
        monkeypatch.setattr(gc, "disable", lambda: (disable(), waits.set()))
        if not is_enabled:
            waits.set()
        making.wait(None)
        assert found == [False] and gc.isenabled() is is_enabled
        assert making.cancel() == Made()
    finally:
        (gc.enable if was else disable)()


def test_where_no_plan_is_found_soon_training_goes_on_and_runs_by_the_one_that_is_found_later(monkeypatch):
    work, may_search = WORKS["residual in place"], threading.Event()
    plain = train(work, 12)
    thorough = engine_plan.plan_jointly

    def nothing_soon(*_: object, **__: object) -> None:
        raise BudgetError("nothing soon")

    def searched(*about: Any, **how: Any) -> JointPlan:
        assert may_search.wait(60)
        return thorough(*about, **how)

    def after(step: int) -> None:
        planned.append(limited.planned_iterations)
        if step == 7:
            may_search.set()
            (thread,) = (each for each in threading.enumerate() if each.name == "memfit planner")
            thread.join()

    monkeypatch.setattr(engine_plan, "soon_planner", lambda *_, **__: nothing_soon)
    monkeypatch.setattr(engine_plan, "_swapping_plan", lambda *_: None)
    monkeypatch.setattr(engine_plan, "plan_jointly", searched)
    monkeypatch.setenv("MEMFIT_PATIENCE", "inf")
    planned = list[int]()
    with inside("joint", "60%") as limited:
        assert same_bits(plain, train(work, 12, after))
    assert planned[7] == 0 and planned[-1] > 0

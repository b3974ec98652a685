"""Whatever the planner itself fails at: one line, a count, training goes on in the same bits, and it tries again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from memfit import session
from memfit.running.planned import engine_plan, pauses, planner, wanted
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.recorded import CompressedIterations
from running.plainly import same_bits
from running.planned.networks import WORKS
from running.planned.training import inside, train

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("on_its_own")]

IN_THE_THREAD: list[tuple[Any, str]] = [
    (CompressedIterations, "recorded"),
    (wanted.Wanted, "_fitting"),
    (wanted.Wanted, "_searched"),
    (wanted, "make_engine_plan"),
    (CompressedPlan, "of"),
    (engine_plan, "place"),
    (engine_plan, "plan_addresses"),
    (engine_plan, "swap_columns"),
    (engine_plan.Search, "run"),
]
BESIDE_IT: list[tuple[Any, str]] = [
    (planner.Planner, "_record"),
    (planner.RecordedKinds, "iterations"),
    (CompressedPlan, "plan"),
    (planner.Planner, "_put_in_force"),
    (planner.Planner, "_watch"),
]


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, times: int) -> Iterator[Callable[[], int]]:
    """Let calls raise, the first `times`; yield how often they did."""
    original, raised = getattr(owner, name), 0

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal raised
        if raised < times:
            raised += 1
            raise KeyError(0)
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        yield lambda: raised


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "KeyError" in line or "Traceback" in line or "Exception" in line]


@pytest.mark.long
@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(("owner", "name"), IN_THE_THREAD + BESIDE_IT, ids=lambda each: getattr(each, "__name__", each))
def test_an_error_of_the_planner_is_a_line_and_a_figure_and_it_tries_again(owner, name, monkeypatch, capfd):
    monkeypatch.setattr(pauses, "_WAIT", 2)
    work = WORKS["residual in place"]
    plain = train(work, 20)
    capfd.readouterr()
    with failing(monkeypatch, owner, name, 2) as raised, inside("swap", "70%") as limited:
        assert same_bits(plain, train(work, 20))
        stats, was_planned, why = limited.stats, limited.planned_iterations, limited.unplanned
    assert raised() == 2 and stats.planner_failures == 2
    told = lines(capfd.readouterr().err)
    assert len(told) == 1 and told[0].startswith("memfit: note: iterations run without a plan (the planner failed: ")
    assert was_planned > 0 and why == ()


@pytest.mark.usefixtures("steady")
def test_a_planner_that_never_succeeds_leaves_training_as_it_is(monkeypatch, capfd):
    work = WORKS["residual in place"]
    plain = train(work, 12)
    capfd.readouterr()
    with failing(monkeypatch, wanted, "make_engine_plan", 1 << 30), inside("swap", "70%") as limited:
        assert same_bits(plain, train(work, 12))
        assert limited.planned_iterations == 0 and limited.stats.planner_failures == 1
        assert "the planner failed: KeyError: 0 at wanted.py:" in limited.unplanned[0]
    assert len(lines(capfd.readouterr().err)) == 1


@pytest.mark.long
@pytest.mark.usefixtures("steady")
def test_one_that_fails_to_improve_a_plan_leaves_it_in_force_and_tries_again(monkeypatch, capfd):
    monkeypatch.setattr(pauses, "_WAIT", 2)
    work = WORKS["residual in place"]
    plain = train(work, 16)
    capfd.readouterr()
    with failing(monkeypatch, engine_plan, "plan_jointly", 1) as raised, inside("joint", "60%") as limited:
        assert same_bits(plain, train(work, 16))
        assert raised() == 1 and limited.stats.planner_failures == 1
        assert limited.planned_iterations > 0 and limited.unplanned == () and limited.plan_searches > 1
    (told,) = lines(capfd.readouterr().err)
    assert told.startswith("memfit: note: no other plan was made (the planner failed: KeyError: 0 at ")


def test_whatever_is_raised_in_the_thread_is_what_came_of_the_making(capfd):
    def stop(_: object) -> Made:
        raise SystemExit("two\nlines")

    making = Making(stop)
    assert making.done(None) and making.result().failed.startswith("SystemExit: two lines at making.py:")
    assert capfd.readouterr().err == ""


def test_a_session_without_plans_has_none_that_failed():
    with session("1 GiB", "ram") as quiet:
        assert quiet.stats.planner_failures == 0

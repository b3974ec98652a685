"""What a session that measures tells of the last iteration under its plan, while others are made and passed over."""

from __future__ import annotations

import pytest

from memfit.ir import Timeline
from memfit.running.planned.engine_plan import CompressedPlan, EnginePlan
from memfit.running.planned.making import Making
from running.planned.networks import WORKS
from running.planned.training import inside, train

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("when plans come into force"),
]
STEPS = 12


class Slow:
    """Plans after the first take until they are let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[Making] = []
        self.may_end = False
        begin, done = Making.__init__, Making.done

        def begun(making: Making, *about: object) -> None:
            self.begun.append(making)
            begin(making, *about)

        def is_done(making: Making, timeout: float | None = 0.0) -> bool:
            ends = self.may_end or making is self.begun[0] or timeout is None
            return ends and done(making, None)

        monkeypatch.setattr(Making, "__init__", begun)
        monkeypatch.setattr(Making, "done", is_done)


@pytest.fixture
def slow(monkeypatch) -> Slow:
    return Slow(monkeypatch)


@pytest.mark.long
def test_iterations_are_noted_while_another_plan_is_made(slow):
    with inside("joint", "60%", measures=True) as session:
        train(WORKS["convolutional"], STEPS)
        plan, measured = session.planned, session.measured
    assert len(slow.begun) == 2 and session.planned_iterations > 1
    assert len(measured.start_us) == len(plan.predicted.start_us)
    assert {copy.swap for copy in measured.copies} == set(range(len(plan.plan.swaps))) != set()


def told_until_another_plan_is_there(slow: Slow) -> list[tuple[EnginePlan, Timeline | None]]:
    """Return what is told after each step; another plan than the first is there when the last step ends."""
    told = []
    with inside("joint", "60%", measures=True) as session:

        def after(step: int) -> None:
            told.append((session.planned, session.measured))
            slow.may_end = step == STEPS - 2

        train(WORKS["convolutional"], STEPS, after)
        told.append((session.planned, session.measured))
    assert len(slow.begun) == 2 and session.plan_searches == 2
    return told[STEPS - 2 :]


@pytest.mark.long
def test_what_was_noted_stays_where_the_plan_in_force_proves_the_best(slow, monkeypatch):
    monkeypatch.setattr(CompressedPlan, "improves", lambda plan, other, never=(): other is None)
    (plan, measured), *_, (last_plan, last_measured) = told_until_another_plan_is_there(slow)
    assert last_plan.plan == plan.plan
    assert measured is not None and last_measured is not None
    assert measured != last_measured


@pytest.mark.long
def test_what_was_noted_is_not_told_of_a_plan_that_came_after(slow):
    (plan, measured), *_, (last_plan, last_measured) = told_until_another_plan_is_there(slow)
    assert measured is not None and last_plan.plan != plan.plan
    assert last_measured is None

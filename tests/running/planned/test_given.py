"""Training by a plan that was passed: from when on, what is noted of it, and what follows if it does not do."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from memfit.ir import Plan
from memfit.running.planned import planner, wanted
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.given import Refused, Used
from memfit.running.planned.revisions import Revisions
from memfit.running.session import Session
from running.plainly import same_bits
from running.planned.networks import WORKS
from running.planned.training import LEARNT, SLOW, inside, train

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("when plans come into force"),
]
WORK, BUDGET = WORKS["convolutional"], "60%"
SEARCHED = 3
"""Steps after which the iteration is known: one shows the optimizer, two are alike."""
DIFFERS = Refused("it differs")


@pytest.fixture
def passed() -> Plan:
    """A plan for the iterations of `WORK`, as an earlier run has found it."""
    with inside("swap", BUDGET) as session:
        train(WORK, LEARNT + 1)
    assert session.planned is not None and session.planned.plan is not None and session.planned.plan.swaps
    return session.planned.plan


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Training waits for no search, and the plan that was passed is judged slowly."""
    judge = wanted.given_engine_plan
    monkeypatch.setattr(wanted, "given_engine_plan", lambda *about: time.sleep(0.5) or judge(*about))
    monkeypatch.setenv("MEMFIT_PATIENCE", "0")


def trained_by(plan: Plan, steps: int) -> Session:
    """Train plainly and by the plan, to the same bits."""
    plain = train(WORK, steps)
    with Session(BUDGET, SLOW, device="cpu", moves="swap", plan=plan, measures=True) as session:
        limited = train(WORK, steps)
    assert same_bits(plain, limited), "the session changed a bit"
    return session


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_training_goes_by_it_as_soon_as_the_iteration_is_known_and_notes_the_first_one(passed):
    session = trained_by(passed, SEARCHED + 1)
    assert session.given_plan == Used() and session.planned_iterations == session.stats.plans == 1
    assert session.plan_searches == 0
    ran = session.what_ran()
    assert ran is not None and ran.measured is not None
    assert {copy.swap for copy in ran.measured.copies} == set(range(len(passed.swaps)))
    assert len(ran.measured.start_us) == len(ran.predicted.start_us)


@pytest.mark.long
def test_a_plan_made_anew_of_which_nothing_was_noted_leaves_what_was_noted_before(passed, monkeypatch):
    measured = []
    monkeypatch.setattr(CompressedPlan, "improves", lambda *_: True)
    monkeypatch.setattr(Revisions, "compare", lambda self, state, known, end, noted: again(self, known))

    def again(self: Revisions, known) -> None:
        measured.append(known.measured)
        if len(measured) == 2:
            known.making = self.asking.make(known)
            known.making.done(None)
            monkeypatch.setattr(Revisions, "noted", lambda *_: None)

    session = trained_by(passed, LEARNT + 4)
    ran = session.what_ran()
    assert session.measured is None and session.stats.plans == 2
    assert ran is not None and ran.measured is not None and ran.measured == measured[1]


@pytest.mark.long
def test_one_that_does_not_do_is_searched_for_instead_and_not_tried_again(passed, monkeypatch, capsys):
    judged = []
    monkeypatch.setattr(wanted, "given_engine_plan", lambda *_: judged.append(1) or DIFFERS)
    session = trained_by(passed, LEARNT + 1)
    assert session.given_plan == DIFFERS and len(judged) == 1
    assert session.plan_searches == 1 and session.planned_iterations > 0
    assert capsys.readouterr().err.count("the given plan is not used: it differs; the session plans by itself") == 1


@pytest.mark.long
def test_one_for_which_there_is_no_room_is_searched_for_instead(passed, monkeypatch, capsys):
    put = planner.Planner._put_in_force
    tried = []

    def put_what_was_not_passed(self, plan, *about) -> bool:
        tried.append(plan.is_given)
        return not plan.is_given and put(self, plan, *about)

    monkeypatch.setattr(planner.Planner, "_put_in_force", put_what_was_not_passed)
    session = trained_by(replace(passed, policy="passed"), LEARNT + 12)
    assert tried[:4] == [True, True, True, False] and session.planned_iterations > 0
    assert "the given plan is not used: the other live storages leave no room" in capsys.readouterr().err

"""Plans stay in force, and bits are the same, whatever a training loop does now and then."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.common import companions
from benchmarks.common.deviating import LOOPS, Training, trained
from memfit.running import engine
from memfit.running.planned.asking import Asking
from memfit.running.planned.making import Made, Making
from memfit.running.planned.planner import Planner
from memfit.running.planned.states import Known
from memfit.running.session import Session
from running.plainly import same_bits
from running.side_by_side import repeated

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("how many iterations run by a plan"),
]
STEPS, FIRST = 60, 10
BUDGET = "60%"
SIZE = {"width": 16, "depth": 4}
SIMILAR = ("losses are kept", "gradients are logged, every 5th", "two sizes of batch by turns")
"""To a loss that is logged, gradients that are clipped, and a smaller batch."""
GUEST_BYTES = 900_000
DONE = Making.done  # which waits no longer than it is told


def counted(train: Callable[[Callable[[int], None]], list[Tensor]]) -> tuple[Session, list[int]]:
    """Train in a session and plainly, to the same bits; return, by step, the iterations by a plan so far.

    `train` says after each step that it is over.
    """
    plain, counts = train(lambda _: None), []
    with Session(BUDGET, "ram", device="cpu", grow=False) as session:
        limited = train(lambda _: counts.append(session.planned_iterations))
    assert same_bits(plain, limited), "the session changed a bit"
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes
    return session, counts


def planned_of(name: str) -> tuple[Session, list[int]]:
    """Return the same of a loop."""
    return counted(lambda after: trained(name, STEPS, after, **SIZE))


def missed(counts: list[int], first: int = 1) -> list[int]:
    """Return the steps from `first` on that did not run by a plan."""
    return [step for step in range(first, len(counts)) if counts[step] == counts[step - 1]]


def is_mostly_planned(counts: list[int]) -> bool:
    """Return whether nine of ten iterations after the tenth run by a plan."""
    return counts[-1] - counts[FIRST] >= 0.9 * (STEPS - 1 - FIRST)


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SIMILAR else []) for n in LOOPS])
def test_nine_of_ten_iterations_run_by_a_plan_after_the_tenth(name):
    session, counts = planned_of(name)
    assert is_mostly_planned(counts), f"not by a plan: {missed(counts)}, {session.stats}"
    assert session.stats.swaps > 0 and session.unplanned == ()


@pytest.mark.long
@pytest.mark.parametrize("name", companions.LOOPS)
def test_company_leaves_a_plan_in_force(name):
    session, counts = counted(lambda after: companions.trained(name, STEPS, after))
    assert is_mostly_planned(counts)
    assert session.stats.swaps > 0 and session.unplanned == ()


@pytest.mark.long
def test_ops_that_the_plan_does_not_have_leave_it_in_force():
    session, _ = planned_of("gradients are logged, every 5th")
    stats = session.stats
    assert stats.unplanned_ops > 0 and stats.derailments > 0 == stats.missing_ops
    assert len(session.signature_counts) >= 3  # of the first iteration, of the others, and of those with a log


@pytest.mark.long
def test_kinds_that_come_by_turns_have_a_plan_each():
    session, counts = planned_of("two sizes of batch by turns")
    assert session.stats.plans >= counts[-1] - 1  # it is changed each time
    assert sum(count > STEPS // 3 for count in session.signature_counts.values()) == 2


@pytest.mark.long
def test_a_batch_of_a_size_that_never_came_before_costs_its_own_iteration_alone():
    """The most frequent kind's plan is in force again right after it."""
    odd = range(20, 32, 3)

    def train(after: Callable[[int], None]) -> list[Tensor]:
        training = Training.of(*SIZE.values())
        for step in range(34):
            training.step(training.loss(images=15 - step // 3 if step in odd else 16))
            after(step)
        return training.everything()

    _, counts = counted(train)
    assert missed(counts, FIRST) == list(odd)


@pytest.fixture
def searched_for_ever(steady, monkeypatch):
    """A better plan is looked for as long as the session lasts."""
    make = Asking.make

    def never_better(self: Asking, known: Known, **about) -> Making:
        is_better = known.plan is not None
        return Making(lambda making: Made(searched=making.stop.wait(120))) if is_better else make(self, known, **about)

    monkeypatch.setattr(Making, "done", DONE)
    monkeypatch.setattr(Asking, "make", never_better)
    monkeypatch.setenv("MEMFIT_PATIENCE", "60")


@pytest.mark.long
@pytest.mark.usefixtures("searched_for_ever")
def test_a_search_that_goes_on_keeps_no_plan_from_its_turn():
    """Evaluations take the plan that there is out of force."""
    session, counts = planned_of("evaluation, every 10th")
    assert session.stats.plans >= 8 and is_mostly_planned(counts)


@pytest.mark.long
@pytest.mark.usefixtures("searched_for_ever")
def test_a_plan_without_room_is_tried_a_few_times_while_a_better_one_is_looked_for(monkeypatch):
    put, tried = Planner._put_in_force, []

    def put_once(self: Planner, *about) -> bool:
        tried.append(self._before["iterations"])
        return len(tried) == 1 and put(self, *about)

    monkeypatch.setattr(Planner, "_put_in_force", put_once)
    session, counts = planned_of("evaluation, every 10th")
    assert session.stats.plans == 1 and 0 < counts[-1] < FIRST
    assert len(tried) <= 1 + 2 * 3  # of two kinds, three times each


@pytest.fixture
def tried_in_slices():
    """An earlier session of the process has tried a call in slices."""
    native = engine.load()
    before = native.split_answers()
    native.know_splits([("aten::relu", 7, 0, 0, [], [])])
    yield
    native.know_splits(before)


@pytest.mark.long
@pytest.mark.usefixtures("tried_in_slices")
def test_calls_are_known_again_whether_or_not_their_inputs_were_put_off():
    """Those of calls that may run in slices are, unless a plan is in force, which unknown calls would take away."""
    session, counts = planned_of("evaluation, every 10th")
    assert is_mostly_planned(counts) and session.unplanned == ()


def same_in_a_session(train: Callable[[], list[Tensor]], **settings: bool) -> Session:
    plain = train()
    with Session(BUDGET, "ram", device="cpu", **settings) as session:
        limited = train()
    assert same_bits(plain, limited), "the session changed a bit"
    return session


@pytest.mark.long
def test_ops_that_do_not_come_are_passed_over():
    """The first layer has no gradient in every third step."""

    def train() -> list[Tensor]:
        training = Training.of(*SIZE.values())
        for step in range(40):
            training.net["blocks"][0].requires_grad_(step < 12 or step % 3 > 0)
            training.step(training.loss())
        return training.everything()

    session = same_in_a_session(train)
    assert session.stats.missing_ops > 0 and session.planned_iterations > 20


@pytest.mark.long
def test_what_the_plan_does_not_know_is_its_guest_until_the_bytes_are_wanted():
    """Tensors of a fifth of the budget are made between steps, when most of the zone is free, and are read in each."""

    def train() -> list[Tensor]:
        training, kept = Training.of(*SIZE.values()), []
        for step in range(40):
            training.step(training.loss())
            if step in (14, 20):
                kept.append(torch.full((GUEST_BYTES // 4,), float(step)))
            training.seen += [each[::1000].sum() for each in kept]
        return [*training.everything(), *kept]

    session = same_in_a_session(train, grow=False)
    stats = session.stats
    assert stats.budget_bytes / 6 < GUEST_BYTES and stats.peak_footprint_bytes <= stats.budget_bytes
    assert stats.unplanned_ops > 0 and session.planned_iterations >= 30


@pytest.mark.long
def test_ops_of_another_thread_on_memory_of_its_own_disturb_no_plan():
    """At random moments, as the one has that pins a loader's batches."""
    memory, seen = torch.from_numpy(np.arange(4, dtype=np.float32)), list[float]()

    def busy() -> None:
        memory.view(2, 2).copy_(memory.reshape(2, 2))
        seen.append(memory[3].item())

    with repeated(busy, every_s=0.0005):
        session, counts = planned_of("the same in every step")
    stats = session.stats
    assert len(seen) > 10 * STEPS and counts[-1] > STEPS / 2 and set(seen) == {3}
    assert stats.unplanned_ops < STEPS and stats.missing_ops == stats.derailments == 0  # (some follow the last step)
    assert len(session.signature_counts) == 2  # of the first iteration, and of the others


@pytest.mark.long
def test_batches_of_other_processes_disturb_no_plan_however_many_come_at_a_time():
    """Each is rebuilt from a tensor without elements; a loader's workers are ready in any order."""
    memory, counts = torch.from_numpy(np.arange(4, dtype=np.float32)), np.random.default_rng(0).integers(0, 4, 40)

    def train() -> list[Tensor]:
        training = Training.of(*SIZE.values())
        for count in counts:
            for _ in range(count):
                torch.empty((0,), device="cpu").set_(memory.untyped_storage(), 0, (4,))
            training.step(training.loss())
        return training.everything()

    session = same_in_a_session(train)
    assert len(session.signature_counts) == 2  # of the first iteration, and of the others
    assert session.stats.missing_ops == session.stats.derailments == 0 and session.planned_iterations > 20


@pytest.mark.long
@pytest.mark.parametrize("early", [(1, 2), (2, 4)])
def test_a_kind_that_only_came_at_the_beginning_keeps_no_plan_from_the_others(early, capsys):
    """The first is recorded when there is no plan yet, the second when there is one for the others."""

    def train() -> list[Tensor]:
        training = Training.of(*SIZE.values())
        for step in range(30):
            if step in early:
                training.seen.append(torch.ones(500).sum())
            training.step(training.loss())
        return training.everything()

    session = same_in_a_session(train)
    assert session.unplanned == () and session.planned_iterations > 10
    assert "without a plan" not in capsys.readouterr().err

"""A session's life: what it tells before it begins, while it runs and when it has ended; and that it can die."""

import gc
import weakref

import pytest
import torch

import memfit
from memfit.errors import UsageError
from memfit.running import engine
from memfit.running.planned.given import Untried
from memfit.running.session import Session
from running.plainly import descend

NEEDS_A_BEGINNING = ("stats", "signatures", "signature_counts", "recorded", "trace", "peak_bytes", "why_no_limit",
                     "planned_iterations", "planned", "compressed_plan", "measured", "given_plan")  # fmt: skip


def steps(count: int) -> None:
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in descend(optimizer, lambda: layer(torch.ones(8, 64)).sum(), count):
        pass


@pytest.mark.parametrize("name", NEEDS_A_BEGINNING)
def test_before_it_begins_there_is_nothing_to_tell(name):
    with pytest.raises(UsageError, match="has not begun") as raised:
        getattr(memfit.session("1GiB", "ram"), name)
    assert raised.value.why and raised.value.remedy


def test_before_it_begins_nothing_can_be_done():
    session, tensor = memfit.session("1GiB", "ram"), torch.ones(3)
    for act in (
        lambda: session.hold(tensor),
        lambda: session.read_bytes(tensor.untyped_storage()),
        lambda: session.record_span(lambda: None),
    ):
        with pytest.raises(UsageError, match="has not begun"):
            act()
    assert session.began is None and session.tier.kind == "ram"


def test_when_it_has_ended_nothing_more_can_be_done():
    tensor = torch.ones(3)
    with memfit.session("1GiB", "ram") as session:
        assert session.began is not None
    for act in (
        lambda: session.hold(tensor),
        lambda: session.read_bytes(tensor.untyped_storage()),
        lambda: session.record_span(lambda: None),
    ):
        with pytest.raises(UsageError, match="has ended"):
            act()


def test_a_session_that_could_not_begin_has_not_begun():
    session = memfit.session("1GiB", "ram")
    with memfit.session(None, "ram"):
        with pytest.raises(UsageError, match="active already"), session:
            pytest.fail("entered")
        with pytest.raises(UsageError, match="has not begun"):
            _ = session.stats
    with session:
        assert session.stats.budget_bytes == 1 << 30


def test_what_one_that_ended_tells_is_not_a_later_ones():
    with memfit.session(None, "ram") as idle:
        pass
    with memfit.session(None, "ram") as busy:
        steps(4)
        assert len(busy.signatures) == 4
        assert idle.signatures == [] and idle.signature_counts == {}
        assert idle.stats.ops == 0 < busy.stats.ops
        assert idle.recorded is None and idle.planned is None and idle.measured is None
        assert isinstance(idle.given_plan, Untried)
    assert len(busy.signatures) == 4 and sum(busy.signature_counts.values()) == 4


@pytest.mark.parametrize("announced", [True, False])
def test_nothing_keeps_a_session_that_has_ended_alive(announced):
    def ended() -> list[weakref.ref[object]]:
        session = Session("90%", "ram", announce=[].append if announced else None)
        with session:
            steps(8)
            running = session._running
        assert session.trace.ops
        return [weakref.ref(thing) for thing in (session, running, running.planner, running.iterations)]

    for _ in range(2):
        left = ended()
        gc.collect()
        assert [thing() for thing in left] == [None] * 4


def test_a_session_that_has_ended_keeps_nothing_of_the_engine():
    with memfit.session("90%", "ram") as session:
        steps(8)
        running = weakref.ref(session._running)
    gc.collect()
    assert running() is None
    assert session.stats.iterations == 8 and not engine.load().active()


def test_a_session_whose_block_raised_dies_as_well():
    session = memfit.session("90%", "ram")
    with pytest.raises(ValueError, match="mine"), session:
        steps(4)
        raise ValueError("mine")
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None

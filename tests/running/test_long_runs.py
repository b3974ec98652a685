"""Long runs: what a session keeps does not grow with the iterations, and whatever fails leaves its books in order."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

import memfit
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.session import Session
from running.plainly import as_plainly, descend, same_bits, train_by_hand

pytestmark = pytest.mark.timeout(120)


def network(layers: int = 4, width: int = 64) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())))


def train(steps: int, layers: int = 4, width: int = 64) -> list[float]:
    net = network(layers, width)
    optimizer = torch.optim.Adam(net.parameters())
    return [loss.item() for loss in descend(optimizer, lambda: net(torch.ones(64, width)).square().mean(), steps)]


# --- what is kept


def known_ops() -> int:
    engine.load().start_recording()
    return len(engine.load().stop_recording()["op_names"])


def test_the_table_of_ops_does_not_grow_with_the_nodes_of_the_backward_passes():
    with memfit.session(None, "ram", plan=False):
        train(3)
        before = known_ops()
        train(40)
        assert known_ops() == before


def test_an_operator_that_is_defined_anew_is_known_by_its_new_schema():
    """Its schema may come to lie where the old one did; then a write would be taken for a read."""
    with memfit.session(1 << 20, "ram"):
        for writes in (False, True, False, True):
            library = torch.library.Library("memfit_test", "FRAGMENT")
            library.define("bump(Tensor(a!) x) -> ()" if writes else "bump(Tensor x) -> Tensor")
            library.impl("bump", add_one if writes else torch.clone, "CompositeExplicitAutograd")
            tensor = torch.zeros(1 << 15)
            evict()
            torch.ops.memfit_test.bump(tensor)
            evict()
            assert tensor.sum().item() == (1 << 15) * writes
            library._destroy()


def add_one(x: torch.Tensor) -> None:
    x.add_(1)


def evict() -> None:
    """Press everything out of a budget of 1 MiB."""
    for _ in range(2):
        [torch.ones(1 << 15) for _ in range(6)]


@pytest.mark.long
def test_what_never_repeats_itself_is_not_recorded_for_ever():
    x, layer = torch.ones(2, 2), torch.nn.Linear(2, 2)
    with memfit.session("90%", "ram") as session:
        with torch.no_grad():
            for _ in range((1 << 18) // 2 + 2000):
                x.neg_().neg_()
        assert session.stats.recording_given_up_ops > 1 << 18
        optimizer = torch.optim.SGD(layer.parameters())
        for _ in range(3):
            layer(x).sum().backward()
            optimizer.step()
        assert session.recorded is not None and session.stats.budget_bytes > 0  # a step makes it look again


def test_a_session_that_has_ended_is_not_kept():
    with memfit.session("50%", "ram") as session:
        train(3)
    ended = weakref.ref(session)
    del session
    gc.collect()
    assert ended() is None


def test_signatures_are_counted_and_only_the_last_are_kept():
    with memfit.session(None, "ram", plan=False) as session:
        for _ in range(1500):
            torch.ones(1)
            engine.load().boundary()
        assert len(session.signatures) == 1024
        assert sum(session.signature_counts.values()) == 1500 and len(session.signature_counts) <= 2
    assert sum(session.signature_counts.values()) == 1500


# --- what fails


def test_training_goes_on_without_swaps_when_there_is_no_thread_for_copies():
    stats = as_plainly(lambda: train(20), "45%", DisturbedTier("ram", no_threads=True)).stats
    assert stats.lane_failures > 0 and stats.plans == stats.swaps == 0 and stats.evictions > 0


def test_training_goes_on_without_a_plan_when_there_is_no_thread_to_make_it(monkeypatch):
    plain = train(20)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "memfit planner":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with memfit.session("45%", "ram") as session:
        assert train(20) == plain
        assert session.stats.plans == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fail_read", "fail_write"])
@pytest.mark.parametrize("program", [train, train_by_hand])
def test_whatever_copy_fails_nothing_stays_in_use(kind, program):
    plain = program(60)
    for at in range(20, 420, 57):
        with memfit.session("45%", DisturbedTier("ram", **{kind: at})):
            try:
                assert same_bits(program(60), plain)
            except RuntimeError as error:  # the copy was an op's own; one made ahead of its op is made again
                assert "injected fault" in str(error)
            assert engine.load().in_use() == [0, 0, 0]


def test_an_error_that_an_op_cannot_be_told_is_raised_by_the_next_one():
    """Its sizes cannot be asked for: neither it nor what it uses may stay in use."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with memfit.session(1 << 20, "ram"):
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            fake = mode.from_tensor(torch.ones(8, 8))
            (fake + fake).sum()
        assert torch.ones(8).sum().item() == 8
        assert engine.load().in_use() == [0, 0, 0]


@pytest.fixture
def interrupted() -> Iterator[None]:
    def on_alarm(*_: object) -> None:
        raise TimeoutError("the handler's own")

    before = signal.signal(signal.SIGUSR1, on_alarm)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_raises_while_memfit_answers_an_op_is_raised_in_the_program(interrupted):
    def answer() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        sum(range(10))  # here the handler runs

    gc.collect()  # an optimizer that is still about would be waited for
    with Session("45%", "ram", on_trace=answer):
        with pytest.raises(TimeoutError, match="the handler's own"):
            train_by_hand(60)
        assert engine.load().in_use() == [0, 0, 0]
        assert same_bits(train_by_hand(5), train_by_hand(5))

"""A kernel's call that has only to be counted begins and ends at once, and nothing is forgotten."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.session import Session
from running.doors.generated import add, kernel
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def session():
    with Session(BUDGET, "ram", device="cpu", record=False) as session:
        yield session
        assert engine.load().in_use() == [0, 0, 0]


def quick(session, call) -> bool:
    """Call, and return whether it was at once."""
    before = session.stats
    call()
    assert session.stats.ops == before.ops + 1
    return session.stats.ops_at_once == before.ops_at_once + 1


def test_what_is_there_is_used_at_once_and_what_is_away_comes_in(session):
    op, target, source = kernel(add), evicted(), evicted()
    assert not quick(session, lambda: op(target, source))  # they are away, and nobody knows what it allocates
    assert quick(session, lambda: op(target, source))
    press()
    assert not is_resident(target) and not is_resident(source)
    assert not quick(session, lambda: op(target, source))
    assert torch.equal(target, 4 * ramp()) and torch.equal(source, ramp())


def test_what_is_written_to_at_once_is_not_left_behind(session):
    """Its copy outside is good until then; what is only read leaves without a copy."""
    op, target, source = kernel(add), evicted(), evicted()
    op(target, source)
    press()
    target.sum(), source.sum()
    before = session.stats
    assert quick(session, lambda: op(target, source))
    press()
    assert session.stats.drops == before.drops + 1
    assert torch.equal(target, 3 * ramp()) and session.stats.unseen_writes == 0


@pytest.mark.slow
def test_what_a_kernel_uses_stays_while_it_runs(session):
    """Even if it has others leave (as another thread's op would)."""
    target, source, seen = evicted(), evicted(), []
    kernel(add)(target, source)

    def run(target: Tensor, source: Tensor) -> None:
        thread = threading.Thread(target=press)
        thread.start()
        thread.join()
        seen.append(is_resident(target) and is_resident(source))

    before = session.stats.ops_at_once
    kernel(run)(target, source)
    assert seen == [True] and session.stats.ops_at_once == before + 1
    press()
    assert not is_resident(target) and not is_resident(source)


def test_one_tensor_twice_is_let_go_of_once_it_is_over(session):
    op, tensor = kernel(add), evicted()
    op(tensor, tensor)
    assert quick(session, lambda: op(tensor, tensor))
    press()
    assert not is_resident(tensor) and torch.equal(tensor, 4 * ramp())


def test_a_parameter_is_a_tensor_and_another_class_is_looked_at(session):
    class Own(Tensor):
        pass

    op, source = kernel(add), ramp()
    parameter, own = nn.Parameter(ramp()), ramp().as_subclass(Own)
    op(parameter, source)
    assert quick(session, lambda: op(parameter, source))
    assert not quick(session, lambda: op(own, source))
    assert torch.equal(own.as_subclass(Tensor), 2 * ramp())


def test_what_allocates_is_expected_to_do_so_again(session):
    """And makes room for it first: otherwise it might find none in the midst of its work."""
    target, source, made = evicted(), evicted(), []

    def run(target: Tensor, source: Tensor) -> None:
        add(target, source)
        if len(made) % 3 == 2:
            made.append(torch.ones(COUNT))
        else:
            made.append(None)

    op = kernel(run)
    calls = [quick(session, lambda: op(target, source)) for _ in range(6)]
    assert calls == [False, True, True, False, False, False]
    assert torch.equal(target, 7 * ramp()) and all(torch.equal(each, torch.ones(COUNT)) for each in made[2::3])


def test_ops_inside_are_calls_of_it(session):
    target, source = evicted(), evicted()
    op = kernel(lambda target, source: target.add_(source))
    calls = [quick(session, lambda: op(target, source)) for _ in range(3)]
    assert calls == [False, True, True]
    press()
    assert not is_resident(target) and torch.equal(target, 4 * ramp())


def test_a_kernel_that_fails_lets_go(session):
    def fail(target: Tensor, source: Tensor) -> None:
        raise ValueError("it fails")

    op, target, source = kernel(fail), evicted(), evicted()
    for _ in range(3):
        with pytest.raises(ValueError, match="it fails"):
            op(target, source)
    assert session.stats.ops_at_once > 0 and engine.load().in_use() == [0, 0, 0]
    press()
    assert not is_resident(target) and not is_resident(source)


def test_arguments_that_do_not_fit_are_the_kernels_own_matter(session):
    op = kernel(add)
    for arguments in ((), (ramp(),), (ramp(), 3), (ramp(), ramp(), ramp())):
        with pytest.raises((TypeError, AttributeError)):
            op(*arguments)
    assert engine.load().in_use() == [0, 0, 0]


def test_what_does_not_fit_is_refused_as_ever():
    with Session(BUDGET, "ram", device="cpu", record=False, map="never") as session:
        op = kernel(lambda *tensors: None, writes=[False] * 5)
        tensors = [evicted() for _ in range(5)]
        for _ in range(2):
            with pytest.raises(BudgetError, match="inductor::cpp_fused_add_0"):
                op(*tensors)
        assert session.stats.ops_at_once == 0


def test_what_is_recorded_or_mapped_always_is_no_call_at_once():
    for options in ({}, {"record": False, "map": "always"}):
        with Session(BUDGET, "ram", device="cpu", **options) as session:
            op, target, source = kernel(add), evicted(), evicted()
            for _ in range(3):
                op(target, source)
            assert session.stats.ops_at_once == 0
            assert torch.equal(target, 4 * ramp())


def test_while_another_threads_op_runs_it_waits_its_turn(session):
    op, target, source = kernel(add), evicted(), evicted()
    op(target, source)
    entered, done = threading.Event(), threading.Event()

    def run(target: Tensor, source: Tensor) -> None:
        entered.set()
        assert done.wait(60)

    others = kernel(run)
    a, b = ramp(), ramp()
    thread = threading.Thread(target=others, args=(a, b))
    thread.start()
    assert entered.wait(60)
    before = session.stats.ops_at_once
    op(target, source)
    assert session.stats.ops_at_once == before
    done.set()
    thread.join()
    assert torch.equal(target, 3 * ramp())


def test_threads_that_call_kernels_together_lose_nothing(session):
    op, targets, source = kernel(add), [ramp() for _ in range(4)], ramp()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=lambda t=t: [op(t, source) for _ in range(300)]) for t in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    expected = ramp()
    for _ in range(300):
        expected += ramp()
    assert all(torch.equal(target, expected) for target in targets)
    assert session.stats.ops_at_once > 0


def test_outside_of_a_session_a_kernel_is_just_called():
    op, target = kernel(add), ramp()
    op(target, ramp())
    assert torch.equal(target, 2 * ramp())


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "press", "new", "read"]), st.integers(0, 3), st.integers(0, 3)),
    max_size=30,
)


@given(steps=STEPS)
def test_calls_between_whatever_else_happens_agree_with_plain_arrays(steps):
    with Session(BUDGET, "ram", device="cpu", record=False):
        op = kernel(add)
        tensors, expected = [ramp() for _ in range(4)], [ramp().numpy().copy() for _ in range(4)]
        for what, first, second in steps:
            if what == "add":
                op(tensors[first], tensors[second])
                expected[first] += expected[second]
            elif what == "press":
                press()
            elif what == "new":
                tensors[first], expected[first] = ramp(), ramp().numpy().copy()
            else:
                assert torch.equal(tensors[first], torch.from_numpy(expected[first]))
        assert engine.load().in_use() == [0, 0, 0]
        assert all(torch.equal(a, torch.from_numpy(b)) for a, b in zip(tensors, expected, strict=True))

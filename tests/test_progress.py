"""The time that memfit's own work still takes: foreseen by efforts, shown on a terminal alone."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable

import pytest

from memfit import progress
from memfit.comparing.curve import curve_effort, trace_curve
from memfit.comparing.page import Asked, page_effort, page_of
from memfit.files import find_machine
from memfit.ir import Trace
from memfit.machine import Link, Machine
from memfit.planning.joint.plan import joint_effort, plan_jointly
from memfit.progress import Work, about, clock, counted, part, shown, working
from test_terminal import Terminal, tty  # noqa: F401
from trace_builder import TraceBuilder

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def passes(monkeypatch) -> Callable[[float], None]:
    """Let seconds pass."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_what_is_left_is_foreseen_by_efforts_and_then_by_what_is_done(passes):
    work = Work("planning", 60.0)
    assert work.left == 60
    passes(12)
    assert work.line() == "planning | 0:12, about 0:48 left"
    work.spend(6)
    assert work.left == pytest.approx(54 * 18 / 12)  # it takes half as long again
    passes(1)
    assert work.line() == "planning | 0:13, about 1:20 left"
    passes(200)
    assert work.line() == "planning | 3:33, nearly done"


def test_a_part_ends_where_it_was_foreseen_to_whatever_was_done_in_it(passes):
    work = Work("planning", 20.0)
    with work.part(10):
        for effort in (6.0, 6.0):  # more than the part
            work.spend(effort)
        passes(10)
    assert work.left == 10
    with work.part(5):  # it ends at once
        pass
    assert work.left == pytest.approx(5 * 12 / 17)
    with pytest.raises(ValueError), work.part(100):  # not beyond the end
        raise ValueError
    assert work.left == 0


def test_what_has_begun_and_is_late_shows_that_the_rest_will_be_too(passes):
    work = Work("building", 100.0)
    work.begin(40.0)
    passes(50)
    assert work.left == 75  # the first 40 have taken 50 so far
    passes(150)
    assert work.line() == "building | 3:20, about 5:00 left"
    work.spend(40.0)
    work.begin(60.0)
    assert work.left == pytest.approx(60 * 210 / 50)  # the pace of what is done


def test_efforts_are_counted_when_the_next_is_asked_for_and_only_in_the_thread_that_works(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    seen: list[float] = []
    with working("planning", 10.0):
        work = progress._under_way.get()
        assert work is not None
        for _ in counted([1.0, 2.0]):
            seen.append(work._done)
        thread = threading.Thread(target=lambda: list(counted([5.0])))
        thread.start()
        thread.join()
        with part(4):
            pass
        seen.append(work._done)
    assert seen == [0.0, 1.0, 7.0] and progress._under_way.get() is None
    assert list(counted([1.0])) == [1.0]  # nobody asked
    assert sys.stderr.getvalue() == ""  # it is no terminal


def test_the_line_comes_and_goes_on_a_terminal(tty: Terminal, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "stderr", tty.stream)
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    called = threading.Event()

    def text() -> str:
        if len(texts) > 2:
            called.set()
        texts.append(f"done {len(texts)}")
        return texts[-1]

    texts: list[str] = []
    with shown(text):
        called.wait(30)
        print("in between", file=sys.stderr)
    screen = tty.screen()
    assert screen.text == ["in between", ""] and "done 2" in screen.shown


def chain(layers: int) -> Trace:
    """A forward pass that leaves ten bytes a layer, and a backward pass that reads them in reverse."""
    builder = TraceBuilder()
    made = [builder.op(outputs=[10], duration_us=10.0)[0] for _ in range(layers)]
    for storage in reversed(made):
        builder.op(reads=[storage], duration_us=10.0)
        builder.free(storage)
    return builder.build()


def test_all_that_a_curve_and_a_report_are_foreseen_to_take_is_done_in_the_end(monkeypatch):
    trace, machine, moments = chain(12), find_machine("pcie4"), []
    monkeypatch.setattr(Work, "_reach", lambda work, done: (moments.append(done), setattr(work, "_done", done)))
    total = curve_effort(trace, 4, 0.5)
    with working("planning", total):
        trace_curve(trace, machine, points=4, effort=0.5)
    assert moments == sorted(moments) and len(moments) > 9 and moments[-1] == pytest.approx(total)
    moments.clear()
    asked = Asked(points=4, effort=0.5)
    total = page_effort(trace, 80, asked)
    with working("planning", total):
        page_of(trace, machine, file="f", budget_bytes=80, asked=asked)
    assert moments[-1] == pytest.approx(total)


@pytest.mark.long
def test_the_runs_of_a_joint_search_are_counted_one_by_one(monkeypatch):
    trace, moments = chain(12), []
    monkeypatch.setattr(Work, "spend", lambda work, seconds: moments.append(seconds))
    monkeypatch.setattr("memfit.planning.joint.plan._ENOUGH", float("-inf"))  # however good a plan is
    with working("planning", 9.0):
        plan_jointly(trace, Machine("m", Link.affine(0, 0.1), Link.affine(0, 0.1)), 60, effort=3.0)
    assert len(moments) >= 3 and sum(moments) <= joint_effort(trace, 3.0)


@pytest.mark.parametrize(("seconds", "text"), [(7.2, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03")])
def test_durations_are_shown_as_a_clock_shows_them(seconds, text):
    assert clock(seconds) == text


def test_less_than_a_second_is_nearly_done():
    assert (about(0.4), about(90)) == ("nearly done", "about 1:30 left")

"""The ops of iterations under a plan are timed, and planned with, where these take another time than foreseen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from memfit.ir import Timeline
from memfit.machine import Link, Machine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.planned import drift, op_times, revisions, wanted
from memfit.running.planned.asking import Asking
from memfit.running.planned.engine_plan import CompressedPlan, EnginePlan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.op_times import OpTimes, Pace, Timing
from memfit.running.planned.recorded import Recorded
from memfit.running.planned.states import Known
from memfit.running.planned.wanted import Wanted
from running.plainly import same_bits
from running.planned.networks import WORKS
from running.planned.training import inside, plan_at_fixed_steps, train
from trace_builder import TraceBuilder

MS = 1_000_000  # nanoseconds


def iteration(*took_us: float, waited_us: float = 0.0) -> Timeline:
    """Return one whose ops each wait, and then take so long."""
    ends = np.cumsum(np.array(took_us) + waited_us)
    starts = ends - took_us
    return Timeline(tuple(starts), tuple(ends), (0,) * len(took_us), (), (), float(ends[-1]), sum(took_us), 0)


def noted(spans_ms: list[float], foreseen_ms: float, revisions: int = 0, gains: bool = True) -> list[bool]:
    pace = Pace()
    ends = np.cumsum([0.0, *spans_ms])
    return [
        pace.note(1000 * foreseen_ms, count, round(MS * now), revisions, gains=gains) for count, now in enumerate(ends)
    ]


def test_five_iterations_in_a_row_that_are_all_slower_or_all_faster_count():
    assert noted([10.5] * 6, 10) == [False] * 5 + [True, False]
    assert noted([9.5] * 5, 10)[-1]
    assert not any(noted([10.2, 9.8] * 10, 10)) and not any(noted([10.5, 9.5] * 10, 10))
    assert not any(noted([10.5] * 4 + [10] + [10.5] * 4, 10))


def test_each_plan_made_anew_takes_more_iterations_that_are_further_off():
    assert noted([10.7] * 20, 10, revisions=1).index(True) == 20 and not any(noted([10.5] * 80, 10, revisions=1))
    assert noted([11.3] * 80, 10, revisions=2).index(True) == 80 and not any(noted([11.1] * 99, 10, revisions=2))
    assert noted([21] * 5200, 10, revisions=5).index(True) == 5 << 10  # of twice the time at the most
    assert not any(noted([14.9] * 80, 10, revisions=1, gains=False))
    assert noted([15.1] * 20, 10, revisions=1, gains=False).index(True) == 20
    assert noted([10.5] * 5, 10, gains=False)[-1]


def test_the_time_after_an_iteration_that_does_not_count_is_none_of_an_iteration():
    pace = Pace()
    for now in range(5):
        assert not pace.note(1000, now, 10 * now * MS, 0, gains=True)
    pace.skip()
    assert [pace.note(1000, now, 10 * now * MS, 0, gains=True) for now in range(100, 106)] == [False] * 5 + [True]


def test_iterations_of_which_nothing_is_known_yet_say_nothing():
    """A GPU is behind: then the times of several become known at once."""
    pace = Pace()
    assert not any(
        pace.note(10_000, ended, ended * 10 * MS, 0, gains=True) for ended in (0, 0, 0, 3, 3, 8, 8, 8, 8, 8, 8, 20)
    )
    assert (
        not any(pace.note(10_000, 20, 200 * MS, 0, gains=True) for _ in range(20)) and pace.slower == pace.faster == 0
    )
    slow = [
        pace.note(10_000, 20 + ended, (200 + 11 * ended) * MS, 0, gains=True) for ended in (0, 2, 2, 4, 6, 8, 8, 10)
    ]
    assert slow == [False] * 7 + [True]


def test_each_op_has_its_median_and_all_have_that_of_the_iterations(monkeypatch):
    monkeypatch.setattr(op_times, "_SAMPLES", 3)
    timing = Timing()
    assert not timing.add(iteration(10, 20, 90, waited_us=7)) and not timing.add(iteration(10, 80, 30, waited_us=1))
    assert timing.add(iteration(70, 20, 30))
    times = timing.result([])
    assert times.own_us.tolist() == pytest.approx([20, 40, 60]) and not len(times.again)


def test_iterations_that_never_run_as_planned_are_timed_no_longer():
    timing = Timing()
    assert [timing.add(None) for _ in range(op_times._MOST)] == [False] * (op_times._MOST - 1) + [True]
    assert timing.result([]) is None


@pytest.mark.parametrize("are_noted", [True, False])
def test_a_plan_made_in_a_hurry_is_improved_with_the_times_that_its_ops_show(monkeypatch, are_noted):
    """Where no iteration tells its times, with those that were recorded."""
    asked, work, most = [], WORKS["attentive"], 8
    make, measured = Asking.make, revisions.measured_timeline

    def made(self: Asking, known: Known, **about: str) -> Making:
        asked.append((session.planned_iterations, known.times is not None, about.get("stage")))
        return make(self, known, **about) if known.plan is None else Making(lambda _: Made())

    plan_at_fixed_steps(monkeypatch)
    monkeypatch.setattr(op_times, "_SAMPLES", 5)
    monkeypatch.setattr(op_times, "_MOST", most)
    monkeypatch.setattr(Asking, "make", made)
    monkeypatch.setattr(CompressedPlan, "may_be_improved", property(lambda plan: not plan.is_joint))
    monkeypatch.setattr(revisions, "measured_timeline", lambda *about: measured(*about) if are_noted else None)
    plain = train(work, 20)
    with inside("joint", "50%") as session:
        assert same_bits(plain, train(work, 20))
    planned, times, stages = zip(*asked, strict=True)
    assert times == (False, are_noted) and stages == ("first", "joint")
    assert planned[0] == 0 and (5 <= planned[1] < most if are_noted else planned[1] <= most)


def test_ops_that_ran_again_are_told_from_the_programs():
    timing = Timing([np.array([10.0, 20, 30, 40, 50])])
    times = timing.result([0, 0, 1, 2, 0])  # the third op repeats the first, the fourth the second
    assert times.own_us.tolist() == [10, 20, 50]
    assert times.again.tolist() == [0, 1] and times.again_us.tolist() == [30, 40]
    later = timing.result([0, 1, 0, 3, 0])  # the second op repeats the first, the fourth the program's second
    assert later.own_us.tolist() == [10, 30, 50]
    assert later.again.tolist() == [0, 1] and later.again_us.tolist() == [20, 40]


def test_what_did_not_run_again_is_guessed_from_what_did():
    builder, count = TraceBuilder(), 6
    for _ in range(count):
        builder.op("aten::mm", outputs=[64], duration_us=10.0)
    trace = builder.build()
    recorded = Recorded(trace, [], None, (8.0,) * count)  # type: ignore[arg-type]
    own_us = np.full(count, 20.0)
    plain = OpTimes(own_us, np.array([], dtype=np.int64), np.array([])).applied_to(recorded)
    assert plain.again_us == (16.0,) * count and {op.duration_us for op in plain.trace.ops} == {20.0}
    again = OpTimes(own_us, np.array([1, 1, 1, 2]), np.array([21.0, 19.0, 26.0, 19.0])).applied_to(recorded)
    assert again.again_us[1:3] == (21.0, 19.0) and set(again.again_us[3:]) == {20.0}  # 4 beside what was recorded


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.unstressed("when plans are in force")
@pytest.mark.parametrize(
    ("moves", "false", "another_is_better"),
    [
        ("joint", 20.0, True), ("swap", 0.05, True), ("swap", 20.0, False),
        *(pytest.param(*each, marks=pytest.mark.slow)
          for each in (("swap", 20.0, True), ("joint", 0.05, True), ("joint", 20.0, False))),
    ],
)  # fmt: skip
def test_a_plan_made_with_false_times_is_foreseen_by_true_ones_in_the_end(monkeypatch, moves, false, another_is_better):
    done, recorded, foreseen = Making.done, Recorded.of, []
    monkeypatch.setattr(Making, "done", lambda self, timeout=0.0: done(self, None))

    def falsely(*about: object) -> Recorded | None:
        found = recorded(*about)
        assert found is not None
        ops = tuple(replace(op, duration_us=false * op.duration_us) for op in found.trace.ops)
        again_us = tuple(false * us for us in found.again_us)
        return replace(found, trace=replace(found.trace, ops=ops), again_us=again_us)

    monkeypatch.setattr(Recorded, "of", falsely)
    if not another_is_better:
        monkeypatch.setattr(CompressedPlan, "improves", lambda *_: False)
    monkeypatch.setattr(drift, "_FASTER", 1 << 20)
    work = WORKS["attentive"]
    plain = train(work, 60)

    def after(_step: int) -> None:
        if session.planned is not None and session.planned.predicted is not None:
            foreseen.append(session.planned.compute_us)

    with inside(moves, "50%", DisturbedTier("ram")) as session:
        ours = train(work, 60, after)
    assert same_bits(plain, ours)
    assert session.plan_searches >= 2
    first, last = foreseen[0], foreseen[-1]
    assert last < first / 4 if false > 1 else last > 4 * first


def test_a_plan_that_drops_what_cannot_be_made_again_is_worse_than_any():
    about = {"machine": None, "is_given": False, "compute_us": 100.0, "stall_us": 0.0}
    good = CompressedPlan(None, None, overhead=0.1, dropped=(3, 5), **about)  # type: ignore[arg-type]
    worse = replace(good, overhead=0.2, dropped=(3,))
    assert not worse.improves(good) and not worse.improves(good, [4]) and worse.improves(good, [5])
    assert good.improves(worse) and good.improves(None)


def test_a_plan_that_is_foreseen_anew_has_been_weighed_as_it_was_before(monkeypatch):
    monkeypatch.setattr(wanted, "foreseen_anew", lambda recorded, made, machine: made)
    before = replace(CompressedPlan.of(EnginePlan(None, {}, {}, []), None), is_joint=True)  # type: ignore[arg-type]
    asked = SimpleNamespace(in_force=before, machine=None, iterations=None)
    assert Wanted._anew(asked, None).is_joint  # type: ignore[arg-type]


def test_a_plan_that_gains_less_than_its_first_iteration_costs_is_not_put_in_anothers_place():
    link = Machine("m", Link.of_bandwidth(1.0), Link.of_bandwidth(1.0))
    about = {"is_given": False, "compute_us": 100.0, "stall_us": 0.0}
    plan = CompressedPlan(None, None, link, overhead=0.1, **about)  # type: ignore[arg-type]
    other = replace(plan, machine=Machine("n", link.out, link.into), overhead=0.0995)
    assert not other.improves(plan) and not plan.improves(other) and replace(other, overhead=0.09).improves(plan)

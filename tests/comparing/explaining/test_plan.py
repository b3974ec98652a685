import pytest

from memfit.comparing.explaining.plan import explain_plan, no_worse
from memfit.ir import Category, Plan, Recompute, Swap
from memfit.machine import Link, Machine
from memfit.reporting.explain import Outcome, to_text
from memfit.reporting.show import print_text
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from trace_builder import TraceBuilder

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))
TRACE = layers(4)[0]
PEAK = int(load_bytes(TRACE).max())


def mixed():
    """At the peak, op 3, a weight of 10, storage 1 of 40, storage 2 of 30 and what op 3 makes, 50, are live."""
    builder = TraceBuilder(pinned_bytes=6)
    weight = builder.before(10)
    (first,) = builder.op("aten::mm", reads=[weight], outputs=[40], duration_us=10.0, source="m.py:1")
    (second,) = builder.op("aten::mm", reads=[weight], outputs=[30], duration_us=10.0, source="m.py:2")
    builder.op("aten::mm", reads=[weight], duration_us=10.0)
    (third,) = builder.op("aten::mm", reads=[weight], outputs=[50], duration_us=10.0, source="m.py:3")
    builder.free(third)
    builder.op("aten::mm", reads=[weight], duration_us=20.0)
    builder.op("aten::mm", reads=[second, weight], duration_us=10.0)
    builder.op("aten::mm", reads=[first, weight], duration_us=10.0)
    builder.free(first, second)
    trace = builder.build()
    # In the trace with remakings op 5 is op 6: op 1 runs again before it.
    swap = Swap(1, 40, 0, 2, 4, 7, False)
    plan = Plan(trace.signature, len(trace.ops), "mine", "m", 120, (swap,), recomputes=(Recompute(2, 1, 5, (1,)),))
    return trace, plan


def test_what_becomes_of_the_peaks_bytes_adds_up_to_it():
    trace, plan = mixed()
    report = explain_plan(trace, LINK, 120, plan=plan, effort=0.02)
    figures = report.plan
    assert (report.peak_bytes, report.peak_op.index, figures.policy) == (136, 3, "mine")
    assert (figures.kept_bytes, figures.swapped_bytes, figures.recomputed_bytes) == (66, 40, 30)


def test_what_is_back_before_the_peak_is_kept_there():
    builder = TraceBuilder()
    (first,) = builder.op("aten::ones", outputs=[40])
    (second,) = builder.op("aten::ones", outputs=[30])
    for _ in range(2):
        builder.op("aten::ones", outputs=[1])
    (third,) = builder.op("aten::mm", reads=[first], outputs=[50])
    builder.free(third)
    builder.op("aten::mm", reads=[second])
    trace = builder.build()
    # In the trace with remakings op 0 runs again as op 4, and the peak, op 4, is op 5.
    swap = Swap(1, 30, 1, 4, 5, 6, False)
    plan = Plan(trace.signature, len(trace.ops), "p", "m", 200, (swap,), recomputes=(Recompute(0, 0, 4, (0,)),))
    figures = explain_plan(trace, LINK, 200, plan=plan, effort=0.02).plan
    assert (figures.kept_bytes, figures.swapped_bytes, figures.recomputed_bytes) == (122, 0, 0)


def test_a_plan_for_less_memory_serves_where_none_better_is_found_for_more():
    at = Outcome(100, 0.2, 0.1, 0.1, 0.05)
    better, worse, none = (Outcome(120, added, added, 0.0, 0.04) for added in (0.1, 0.3, None))
    assert no_worse(better, at) == better
    assert no_worse(worse, at) == no_worse(none, at) == Outcome(120, 0.2, 0.1, 0.1, 0.04)


def test_time_is_told_apart_by_waits_and_re_runs():
    trace, plan = mixed()
    figures = explain_plan(trace, LINK, 120, plan=plan, effort=0.02).plan
    # 40 us out from 10 us on, awaited by op 2 at 20; 40 us in from op 4 at 70, awaited by op 7 of the new trace at 120.
    assert (figures.compute_us, figures.rerun_us, figures.wait_us) == (80.0, 10.0, 30.0)
    at = figures.at_budget
    assert (at.added, at.waits, at.reruns) == pytest.approx((40 / 80, 30 / 80, 10 / 80))
    assert 0 <= at.bound <= at.added and at.budget_bytes == 120
    assert (figures.swaps, figures.bytes_out, figures.remakings, figures.remade_bytes, figures.reruns) == (
        1,
        40,
        1,
        30,
        1,
    )


def test_lines_are_told_by_decision():
    trace, plan = mixed()
    rows = explain_plan(trace, LINK, 120, plan=plan, effort=0.02).plan.lines
    found = [(row.decision, row.tensor.source, row.size_bytes, row.absences, row.added_us) for row in rows]
    assert found == [
        ("swapped", "m.py:1", 40, 1, 30.0),
        ("recomputed", "m.py:2", 30, 1, 10.0),
        ("kept", "m.py:3", 50, 1, 0.0),
        ("kept", "", 10, 1, 0.0),
    ]
    assert [row.made_by for row in rows] == ["aten::mm", "aten::mm", "aten::mm", ""]
    assert rows[-1].tensor.category == Category.PARAMETER.value


def test_neighbours_are_a_tenth_of_the_peak_away_and_more_memory_never_costs_more():
    report = explain_plan(TRACE, LINK, PEAK * 3 // 4, effort=0.05)
    less, more = report.plan.neighbours
    assert (less.budget_bytes, more.budget_bytes) == (PEAK * 3 // 4 - PEAK // 10, PEAK * 3 // 4 + PEAK // 10)
    assert more.added <= report.plan.at_budget.added and more.bound <= report.plan.at_budget.bound <= less.bound
    assert report.plan.at_budget.added > 0


def test_a_bad_plan_at_the_budget_serves_for_more_memory_at_most():
    trace, plan = mixed()
    figures = explain_plan(trace, LINK, 120, plan=plan, effort=0.02).plan
    assert [one.budget_bytes for one in figures.neighbours] == [107, 133]
    assert figures.neighbours[1].added <= figures.at_budget.added


def test_no_more_memory_than_the_peak_is_asked_for():
    figures = explain_plan(TRACE, LINK, PEAK, effort=0.05).plan
    assert [one.budget_bytes for one in figures.neighbours] == [PEAK - PEAK // 10]
    assert figures.at_budget.added == 0.0


def test_a_neighbour_without_a_plan_is_said_to_have_none():
    floor = explain_plan(TRACE, LINK, PEAK, effort=0.05).floor.budget_bytes
    less = explain_plan(TRACE, LINK, floor + 1, effort=0.05).plan.neighbours[0]
    assert less.budget_bytes < floor and less.added is None and less.bound is None


def test_a_budget_below_the_floor_has_no_plan_but_what_sets_the_floor():
    report = explain_plan(TRACE, LINK, 1)
    assert report.plan is None and "cannot be met" in report.refused
    assert report.floor.budget_bytes > 1 and report.floor.needs
    assert sum(need.held_bytes for need in report.floor.needs) == report.floor.budget_bytes
    assert report.floor.at_op_bytes <= report.floor.budget_bytes


def test_the_text_has_the_floor_the_plan_and_the_neighbours(capsys):
    trace, plan = mixed()
    print_text(to_text(explain_plan(trace, LINK, 120, plan=plan, effort=0.02)))
    text = " ".join(capsys.readouterr().out.split())
    assert "Smallest feasible budget, with swaps and recomputation: " in text and "pinned bytes of no storage" in text
    assert "66 B kept, 40 B swapped, 30 B recomputed" in text and "What memory buys" in text
    assert "+50.00 % on 80.0 us: waits 30.0 us, re-runs 10.0 us" in text


def test_what_is_pinned_sets_the_smallest_budget_and_is_said_to_be_by_which_line():
    builder = TraceBuilder()
    weight = builder.before(10)
    (wave,) = builder.op("aten::zeros", outputs=[400])
    builder.pin(wave, "train.py:9")
    for _ in range(3):
        (other,) = builder.op("aten::mm", reads=[weight], outputs=[50])
        builder.free(other)
    builder.op("aten::mm", reads=[wave])
    floor = explain_plan(builder.build(), LINK, 1, effort=0.02).floor
    assert floor.budget_bytes == 460
    causes = {need.held_bytes: need.cause for need in floor.needs}
    assert causes[400] == "pinned: its address is known outside, asked for at train.py:9"

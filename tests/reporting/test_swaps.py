"""Reports of plans, curves and policies, as data and as documents."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from memfit.errors import InputError, UsageError
from memfit.ir import Swap
from memfit.machine import Link, Machine, profile
from memfit.reporting.chrome import chrome_trace
from memfit.reporting.curve import curve, draw_curve
from memfit.reporting.policies import chosen_policies, compare_policies, parse_budgets
from memfit.reporting.swaps import report, summary
from memfit.reporting.text import render_policies
from memfit.simulate import load_bytes, simulate
from swap_builder import MACHINES, SIZES, plan_of, plans
from trace_builder import TraceBuilder, traces

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 3000))


def five_ops():
    builder = TraceBuilder()
    weight = builder.before(10)
    for used in ([weight], [], [], [], [weight]):
        builder.op("aten::mm", reads=used, duration_us=10.0)
    return builder.build()


PLAN = plan_of(five_ops(), Swap(0, 10, 0, 2, 3, 4, False))


def test_a_report_names_what_waits():
    trace = five_ops()
    figures = report(trace, PLAN, simulate(trace, LINK, PLAN))
    assert (figures.swaps, figures.bytes_out, figures.bytes_in) == (1, 10, 10)
    assert [(s.op, s.direction, s.duration_us) for s in figures.largest_stalls] == [(4, "in", 20.0)]
    assert "op 4 aten::mm waits 20.0 us for storage 0 (10 B) to come in" in summary(figures)
    assert "+40.00 % on" in summary(figures)


@given(plans(), MACHINES)
@settings(max_examples=50)
def test_a_chrome_trace_has_every_op_wait_and_copy(trace_and_plan, machine):
    trace, plan = trace_and_plan
    timeline = simulate(trace, machine, plan)
    events = json.loads(chrome_trace(trace, plan, timeline))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(trace.ops) + len(timeline.stalls) + len(timeline.copies)
    assert all(span["dur"] >= 0 for span in spans)
    assert sum(event["ph"] == "C" for event in events) == len(trace.ops)
    waits = [span for span in spans if span["name"].startswith("wait")]
    assert sum(span["dur"] for span in waits) == pytest.approx(timeline.stall_us, abs=1e-3)


@given(traces(sizes=SIZES), MACHINES)
@settings(max_examples=20)
def test_a_curve_falls_from_its_least_to_nothing_at_its_peak(trace, machine):
    figures = curve(trace, machine, points=4, effort=0.01)
    added = [point.overhead for point in figures.points]
    assert added == sorted(added) and figures.points[0].budget_bytes == figures.peak_bytes
    assert added[0] == pytest.approx(0, abs=1e-5)
    assert figures.least_bytes <= figures.free.budget_bytes <= figures.peak_bytes
    root = ElementTree.fromstring(draw_curve(figures))
    assert root.tag.endswith("svg")


def test_budgets_are_read_with_one_unit_for_all():
    assert parse_budgets("80,60,40%", 1000) == (800, 600, 400)
    assert parse_budgets("1KiB,50%", 1000) == (1024, 500)
    assert parse_budgets("512,1kb", 1000) == (512, 1000)
    with pytest.raises(InputError):
        parse_budgets("80,x%", 1000)


def test_policies_are_named_or_all():
    assert "memfit" in chosen_policies("all") and "autoswap-doa" not in chosen_policies("all")
    assert chosen_policies("autoswap-doa, none") == ("autoswap-doa", "none")
    for text in ("nothing", ","):
        with pytest.raises(UsageError):
            chosen_policies(text)


def test_a_comparison_has_a_cell_for_each_policy_and_budget():
    trace = five_ops()
    peak = int(load_bytes(trace).max())
    comparison = compare_policies("f", trace, profile("pcie4"), (peak, 1), ("none", "memfit"))
    assert [(c.policy, c.budget_bytes, c.overhead is None) for c in comparison.cells] == [
        ("none", 10, False),
        ("memfit", 10, False),
        ("none", 1, True),
        ("memfit", 1, True),
    ]
    assert render_policies(comparison).row_count == 2

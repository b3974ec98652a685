"""A trace and a plan at a glance."""

from xml.etree import ElementTree

import pytest

from memfit.comparing.glance import plan_at_a_glance, trace_at_a_glance
from memfit.ir import Plan, Recompute, Swap
from memfit.reporting.glance import to_html
from trace_builder import TraceBuilder


def test_the_picture_has_a_column_for_each_op_and_keeps_peaks_of_long_iterations():
    builder = TraceBuilder(alignment=64)
    for index in range(3000):
        builder.free(*builder.op(outputs=[1 << 20 if index == 1777 else 1024]))
    html = to_html(trace_at_a_glance(builder.build()))
    points = ElementTree.fromstring(html).find(".//{*}polygon").get("points").split()
    tops = [float(point.split(",")[1]) for point in points[: len(points) // 2]]
    highest = float(points[tops.index(min(tops))].split(",")[0])
    assert len(points) < 3000 and min(tops) == 12.0 and highest == pytest.approx(70 + 570 * 1777 / 3000, abs=1)


def test_a_plan_shows_its_budget_and_what_it_moves():
    swaps = (Swap(0, 1 << 20, 0, 1, 2, 3, False), Swap(1, 3 << 20, 0, 1, 2, 2, False, returns=False))
    plan = Plan("s", 4, "memfit", "<pcie4>", 8 << 20, swaps, 0, (Recompute(2, 0, 3, (1,)),))
    rows = dict(plan_at_a_glance(plan).rows)
    assert rows["budget"] == "8.00 MiB" and rows["recomputes"] == "1"
    assert rows["swaps"] == "2: 4.00 MiB out and 1.00 MiB in an iteration"
    assert "&lt;pcie4&gt;" in to_html(plan_at_a_glance(plan)) and len(repr(plan)) < 200

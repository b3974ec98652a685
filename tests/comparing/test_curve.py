from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from memfit.comparing.curve import trace_curve
from memfit.reporting.curve import to_svg
from swap_builder import MACHINES, SIZES
from trace_builder import traces


@given(traces(sizes=SIZES), MACHINES)
@settings(max_examples=20)
def test_a_curve_falls_from_its_least_to_nothing_at_its_peak(trace, machine):
    figures = trace_curve(trace, machine, points=4, effort=0.01)
    added = [point.overhead for point in figures.points]
    assert added == sorted(added) and figures.points[0].budget_bytes == figures.peak_bytes
    assert added[0] == pytest.approx(0, abs=1e-5)
    assert figures.least_bytes <= figures.free.budget_bytes <= figures.peak_bytes
    root = ElementTree.fromstring(to_svg(figures))
    assert root.tag.endswith("svg")

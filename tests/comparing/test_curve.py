from xml.etree import ElementTree

import pytest
from hypothesis import given

from memfit.comparing.curve import trace_curve
from memfit.machine import Link, Machine
from memfit.reporting.curve import to_svg, to_text
from memfit.units import format_share
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, SIZES
from trace_builder import traces


@given(traces(sizes=SIZES), MACHINES)
def test_a_curve_falls_from_its_least_to_nothing_at_its_peak(trace, machine):
    figures = trace_curve(trace, machine, points=4, effort=0.01)
    added, alone = ([point.overhead for point in points] for points in (figures.points, figures.swaps_alone))
    assert added == sorted(added) and alone == sorted(alone)
    assert all(each <= other for each, other in zip(added, alone, strict=True))
    assert figures.points[0].budget_bytes == figures.peak_bytes
    assert added[0] == pytest.approx(0, abs=1e-5)
    assert figures.least_bytes <= figures.free.budget_bytes <= figures.peak_bytes
    root = ElementTree.fromstring(to_svg(figures))
    assert root.tag.endswith("svg")


def test_recomputation_is_beside_swaps_alone():
    slow = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))
    figures = trace_curve(layers(4)[0], slow, points=4, effort=0.05)
    assert figures.points[2].overhead < 2 < figures.swaps_alone[2].overhead
    for row, point, alone in zip(to_text(figures).splitlines()[2:], figures.points, figures.swaps_alone, strict=True):
        assert row.endswith(f"  {format_share(alone.overhead)}") and f" {format_share(point.overhead)} " in row
    drawn = [each.get("points") for each in ElementTree.fromstring(to_svg(figures)).iter() if each.get("points")]
    assert len(drawn) == 2 and drawn[0] != drawn[1]

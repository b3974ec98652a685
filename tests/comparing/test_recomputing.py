import pytest

from memfit.comparing.recomputing import judge
from memfit.machine import Link, Machine
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))
TRACE = layers(4)[0]
PEAK = int(load_bytes(TRACE).max())


def test_a_cell_has_the_figures_of_a_plan():
    cell = judge(TRACE, LINK, PEAK * 3 // 4, "dtr")
    assert cell.policy == "dtr" and cell.peak_bytes <= cell.budget_bytes == PEAK * 3 // 4
    assert cell.added_us == pytest.approx(cell.again_us) and cell.added_us > 0 and cell.copied_bytes == 0
    assert cell.overhead == pytest.approx(cell.added_us / sum(op.duration_us for op in TRACE.ops))


def test_a_policy_without_a_plan_says_what_it_needs():
    cell = judge(TRACE, LINK, 1, "dtr")
    assert cell.overhead is None and cell.added_us is None and cell.required_bytes > 1

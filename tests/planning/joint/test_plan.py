import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memfit.errors import BudgetError
from memfit.ir import Plan
from memfit.machine import Link, Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import plan_jointly
from memfit.simulate import load_bytes
from memfit.validate_plan import check_plan
from planning.joint.test_transformed import assert_same_values, layers
from swap_builder import MACHINES
from trace_builder import traces


@settings(max_examples=40)
@given(traces(max_ops=12), MACHINES, st.data())
def test_a_joint_plan_is_valid_keeps_the_values_and_is_not_below_its_bound(trace, machine, data):
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    budget = data.draw(st.integers(1, peak))
    try:
        plan = plan_jointly(trace, machine, budget, effort=0.02)
    except BudgetError:
        return
    assert isinstance(plan.swaps.plan, Plan) and check_plan(plan.transformed.trace, plan.swaps.plan) is None
    assert plan.swaps.timeline.peak_bytes <= budget
    assert_same_values(corrected(trace), plan.transformed)
    assert plan.added_us >= plan.bound.added_us - 1e-3 * max(1.0, plan.bound.added_us)


def test_layers_are_made_again_where_the_link_is_slow():
    link = Link.affine(0.0, 1_000_000.0)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1)
    assert plan.recomputes and plan.overhead < 1
    assert plan.added_us == pytest.approx(sum(op.duration_us for op in plan.transformed.trace.ops) - plan.compute_us)


def test_swaps_do_where_the_link_is_fast():
    link = Link.affine(0.0, 1e-3)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("fast", link, link), 330, effort=0.1)
    assert not plan.recomputes and plan.swaps.plan.swaps


def test_a_budget_without_a_plan_is_refused():
    trace, _ = layers(4)
    with pytest.raises(BudgetError):
        plan_jointly(trace, Machine("m", Link.affine(0.0, 1.0), Link.affine(0.0, 1.0)), 100)

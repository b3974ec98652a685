"""Planners by their names: memfit's three, and those of other systems, with addresses and without."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memfit.baselines.policies import POLICIES
from memfit.baselines.recomputing import RECOMPUTE_POLICIES
from memfit.comparing.planners import OURS, Asked, choose_planners, find_planner, footprinted, plan_by
from memfit.errors import BudgetError, UsageError
from memfit.machine import Link, Machine
from memfit.planning.joint.judged import judged
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, SIZES
from trace_builder import TraceBuilder, traces

LINK = Machine("m", Link.affine(0, 30), Link.affine(0, 30))
TRACE = layers(4)[0]
PEAK = int(load_bytes(TRACE).max())


def test_planners_are_named_or_all():
    assert set(choose_planners("all")) == {*POLICIES, "swap", "recompute"}
    assert choose_planners("dtr, none,autoswap-doa") == ("dtr", "none", "autoswap-doa")
    for text in ("nothing", ","):
        with pytest.raises(UsageError):
            choose_planners(text)


@pytest.mark.parametrize("name", [*OURS, *RECOMPUTE_POLICIES, "geeps"])
def test_every_planner_that_is_named_plans_this_trace(name):
    plan = find_planner(name)(TRACE, LINK, PEAK * 9 // 10)
    assert plan.policy == ("memfit" if name == "memfit-joint" else name)
    assert judged(TRACE, LINK, plan).timeline.peak_bytes <= PEAK * 9 // 10


def test_each_of_ours_does_what_its_name_says():
    plans = {name: plan_by(name, Asked(TRACE, LINK, PEAK * 3 // 5, 0.1)) for name in OURS}
    assert plans["swap"].plan.swaps and not plans["swap"].plan.recomputes
    assert plans["recompute"].plan.recomputes and not plans["recompute"].plan.swaps
    added = {name: judged(TRACE, LINK, found.plan).added_us for name, found in plans.items()}
    assert added["memfit"] <= min(added["swap"], added["recompute"]) + 1e-9
    assert plans["memfit"].bound_us <= min(plans["swap"].bound_us, plans["recompute"].bound_us) + 1e-3
    assert all(found.bound_us <= added[name] + 1e-3 for name, found in plans.items())
    assert plan_by("dtr", Asked(TRACE, LINK, PEAK, 0.1)).bound_us is None


def test_the_bound_of_swaps_is_that_of_plans_that_copy_out_every_time():
    builder = TraceBuilder()
    (twice,) = builder.op("aten::mm", outputs=[64])
    for _ in range(2):
        builder.free(*builder.op("aten::mm", outputs=[64]))
        builder.op("aten::sum", reads=[twice])
    trace = builder.build()
    slow = Machine("slow", Link.affine(0, 10_000), Link.affine(0, 10_000))
    found = plan_by("swap", Asked(trace, slow, 64, 0.1))
    out_us, in_us = slow.out.copy_us(64), slow.into.copy_us(64)
    assert found.bound_us == pytest.approx(2 * (out_us + in_us), rel=0.05)  # clean copies would leave once
    assert found.bound_us <= judged(trace, slow, found.plan).added_us + 1e-3


@settings(max_examples=25)
@given(traces(sizes=SIZES), MACHINES, st.sampled_from(sorted(OURS)), st.floats(0.3, 1))
def test_with_addresses_the_footprint_fits_the_budget(trace, machine, name, share):
    budget = int(share * load_bytes(trace).max())
    assume(budget > 0)
    try:
        found = plan_by(name, Asked(trace, machine, budget, 0.02, True))
    except BudgetError as error:
        assert error.required_bytes is None or error.required_bytes > budget
        return
    result = judged(trace, machine, found.plan)
    assert found.plan.budget_bytes == budget
    assert result.timeline.peak_bytes <= found.plan.footprint_bytes <= budget
    assert found.bound_us <= result.added_us + 1e-3 * max(1.0, result.added_us)


def test_the_footprint_is_of_the_trace_with_remakings():
    plan = find_planner("recompute")(TRACE, LINK, PEAK * 3 // 5)
    assert plan.recomputes and footprinted(TRACE, plan).footprint_bytes < PEAK

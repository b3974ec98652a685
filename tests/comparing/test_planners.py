"""Planners by their names: memfit's three, and those of other systems, with addresses and without."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.baselines.policies import POLICIES
from memfit.baselines.recomputing import RECOMPUTE_POLICIES
from memfit.comparing.planners import OURS, Asked, choose_planners, find_planner, footprinted, plan_by
from memfit.errors import BudgetError, UsageError
from memfit.ir import Recompute
from memfit.machine import Faults, Link, Machine
from memfit.planning.autoswap.search import least_held
from memfit.planning.joint.judged import judged
from memfit.simulate import load_bytes
from memfit.validate_maps import InvalidMapsError
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


LARGE = st.integers(0, 40).map(lambda size: size << 16)
ZERO_COPY = Machine("z", Link.affine(0, 30), Link.affine(0, 30), faults=Faults(0.0, 0, 0))


@given(traces(sizes=LARGE), st.sampled_from([LINK, ZERO_COPY]), st.sampled_from(sorted(OURS)), st.booleans())
def test_below_the_largest_op_what_does_not_fit_is_mapped(trace, machine, name, addresses):
    least = int(least_held(trace).max())
    budget = least - least // 4
    assume(budget > 0)
    with pytest.raises(BudgetError):
        plan_by(name, Asked(trace, machine, budget, 0.02, addresses))
    try:
        plan = plan_by(name, Asked(trace, machine, budget, 0.02, addresses, maps=True)).plan
    except BudgetError:
        return
    result = judged(trace, machine, plan)
    assert plan.maps and result.timeline.peak_bytes <= budget
    rounding = 1e-12 * result.timeline.compute_us  # of the sum that it is taken from
    assert result.compute_us == pytest.approx(sum(op.duration_us for op in trace.ops), abs=rounding)
    assert result.mapped_us >= 0


def test_nothing_is_mapped_above_the_largest_op():
    asked = Asked(TRACE, LINK, PEAK * 3 // 5, 0.1, maps=True)
    assert not plan_by("memfit", asked).plan.maps


def test_what_is_mapped_is_not_made_again():
    """The one way to meet the budget by making again would run an op that maps."""
    builder = TraceBuilder()
    weight = builder.before(64 << 16)
    (a,) = builder.op("aten::mul", reads=[weight], outputs=[40 << 16], duration_us=0.1)
    (b,) = builder.op("aten::relu", reads=[weight], outputs=[40 << 16])
    builder.op("aten::add_", reads=[a], writes=[b])
    trace = builder.build()
    budget = 90 << 16
    found = plan_by("memfit", Asked(trace, ZERO_COPY, budget, 0.1, maps=True)).plan
    mapped = {storage for each in found.maps for storage in each.storages}
    assert weight in mapped and not found.recomputes
    assert judged(trace, ZERO_COPY, found).timeline.peak_bytes <= budget
    with pytest.raises(InvalidMapsError, match="runs op 0 again"):
        judged(trace, ZERO_COPY, replace(found, recomputes=(Recompute(a, 0, 2, (0,)),)))

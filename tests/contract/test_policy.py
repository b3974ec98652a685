"""What every swap policy promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.baselines.policies import OPTIONAL, POLICIES, find_policy
from memfit.baselines.policies.policy import all_gaps
from memfit.errors import BudgetError
from memfit.ir import Phase
from memfit.machine import profile
from memfit.planning.autoswap import smallest_budget
from memfit.simulate import load_bytes, simulate
from memfit.validate_plan import check_plan
from swap_builder import MACHINES, SIZES
from trace_builder import TraceBuilder, traces

NAMES = sorted({*POLICIES, *OPTIONAL} - {"autoswap-bayes"})
policies = pytest.mark.parametrize("name", NAMES)
# Those that are defined for any trace, and evict whatever makes room, but for what leaves for good over the end.
REACTIVE = ("on-demand-lru", "on-demand-clairvoyant", "swap-advisor")
TOO_LITTLE = {"none", "superneurons"}  # what these take out of the network below is not enough


@policies
@given(trace=traces(sizes=SIZES), machine=MACHINES, share=st.floats(0, 1.1))
def test_a_plan_is_valid_and_within_the_budget_or_refused(name, trace, machine, share):
    peak = int(load_bytes(trace).max())
    budget = int(share * peak)
    try:
        plan = find_policy(name)(trace, machine, budget)
    except BudgetError as error:
        assert error.required_bytes > budget
        assert "try: " in str(error)
        return
    assert plan.budget_bytes == budget and plan.policy == name
    assert check_plan(trace, plan) is None
    assert simulate(trace, machine, plan).peak_bytes <= budget


@policies
@given(trace=traces(sizes=SIZES), machine=MACHINES, share=st.floats(0.3, 1))
def test_the_same_question_has_the_same_answer(name, trace, machine, share):
    def answer():
        try:
            return find_policy(name)(trace, machine, int(share * load_bytes(trace).max()))
        except BudgetError as error:
            return str(error)

    assert answer() == answer()


@policies
@given(trace=traces(sizes=SIZES), machine=MACHINES)
def test_what_fits_anyway_costs_nothing(name, trace, machine):
    plan = find_policy(name)(trace, machine, int(load_bytes(trace).max()))
    if name not in ("vdnn-all", "vdnn-conv", "geeps"):
        assert not plan.swaps


@given(trace=traces(sizes=SIZES), machine=MACHINES)
def test_memfit_reaches_all_that_swapping_can(trace, machine):
    least = smallest_budget(trace)[0]
    assert find_policy("memfit")(trace, machine, least).budget_bytes == least


@pytest.mark.parametrize("name", REACTIVE)
@given(trace=traces(sizes=SIZES), machine=MACHINES)
def test_these_reach_all_that_swapping_can_but_for_what_leaves_for_good_over_the_end(name, trace, machine):
    evicted = [gap for gap in all_gaps(trace) if gap.returns or not trace.outlives(trace.storages[gap.storage])]
    least = smallest_budget(trace, evicted)[0]
    assert find_policy(name)(trace, machine, least).budget_bytes == least


def network(layers=8, size=1 << 20):
    """Convolutions, each with an activation; backward in reverse; the weights are updated at the end."""
    builder = TraceBuilder(alignment=512)
    weights = [builder.before(size // 4) for _ in range(layers)]
    x = builder.alloc(size)
    saved = []
    for weight in weights:
        (y,) = builder.op("aten::convolution", reads=[x, weight], outputs=[size], duration_us=300.0)
        (z,) = builder.op("aten::relu", reads=[y], outputs=[size], duration_us=30.0)
        builder.free(y)
        saved.append((x, weight, z))
        x = z
    (grad,) = builder.op("loss", reads=[x], outputs=[size], duration_us=30.0, phase=Phase.BACKWARD)
    for x, weight, z in reversed(saved):
        (dy,) = builder.op("relu_backward", reads=[grad, z], outputs=[size], duration_us=30.0, phase=Phase.BACKWARD)
        dx, dw = builder.op("convolution_backward", reads=[dy, x, weight], outputs=[size, size // 4],
                            duration_us=600.0, phase=Phase.BACKWARD)  # fmt: skip
        builder.free(grad, dy, z)
        builder.op("sgd", reads=[dw], writes=[weight], duration_us=5.0, phase=Phase.OPTIMIZER)
        builder.free(dw)
        grad = dx
    return builder.build()


@policies
@pytest.mark.parametrize("percent", [90, 75])
def test_a_convolutional_network_is_planned(name, percent):
    trace = network()
    budget = int(load_bytes(trace).max()) * percent // 100
    machine = profile("pcie3")
    if name in TOO_LITTLE:
        with pytest.raises(BudgetError):
            find_policy(name)(trace, machine, budget)
        return
    plan = find_policy(name)(trace, machine, budget)
    assert check_plan(trace, plan) is None and plan.swaps
    assert POLICIES["memfit"](trace, machine, budget) is not None


@pytest.mark.parametrize("percent", [90, 75, 60])
def test_memfits_planner_is_the_fastest(percent):
    trace, machine, took = network(), profile("pcie3"), {}
    budget = int(load_bytes(trace).max()) * percent // 100
    for name in set(NAMES) - TOO_LITTLE:
        took[name] = simulate(trace, machine, find_policy(name)(trace, machine, budget)).iteration_us
    assert took["memfit"] <= min(took.values()) * (1 + 1e-9)


def test_the_combination_is_no_slower_than_the_scores_it_begins_with():
    pytest.importorskip("bayes_opt")
    trace, machine = network(), profile("pcie3")
    budget = int(load_bytes(trace).max()) * 80 // 100
    plan = find_policy("autoswap-bayes")(trace, machine, budget)
    assert check_plan(trace, plan) is None

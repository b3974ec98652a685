"""What every policy that recomputes promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.test_policy import network
from memfit.baselines.recomputing import RECOMPUTE_POLICIES, SMALL_GRAPHS, find_recompute_policy
from memfit.errors import BudgetError
from memfit.machine import profile
from memfit.planning.joint.judged import judged
from memfit.planning.joint.program import time_bound
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, SIZES
from trace_builder import traces

NAMES = sorted({*RECOMPUTE_POLICIES, *SMALL_GRAPHS})
QUICK = [name for name in NAMES if name not in ("memfit-joint", "checkmate")]
policies = pytest.mark.parametrize("name", NAMES)
quick = pytest.mark.parametrize("name", QUICK)
AT_ANY_BUDGET = {"memonger-sqrt", "superneurons-speed", "superneurons-memory", "superneurons-cost"}
# What these drop of the network below comes back too early to be enough.
TOO_LITTLE = {"superneurons-speed", "superneurons-cost", "torch-knapsack"}


def added_us(name, trace, machine, budget):
    """The microseconds that the policy adds, after every check; None if it refuses."""
    try:
        found = find_recompute_policy(name)(trace, machine, budget)
    except BudgetError as error:
        assert error.required_bytes is None or error.required_bytes > budget
        assert "try: " in str(error)
        return None
    assert found.budget_bytes == budget and (found.signature, found.op_count) == (trace.signature, len(trace.ops))
    result = judged(trace, machine, found)
    assert result.timeline.peak_bytes <= budget
    return result.added_us


@pytest.mark.long
@quick
@given(trace=traces(sizes=SIZES), machine=MACHINES, share=st.floats(0, 1.1))
def test_a_plan_keeps_the_values_and_the_budget_or_is_refused(name, trace, machine, share):
    added_us(name, trace, machine, int(share * load_bytes(trace).max()))


@quick
@given(trace=traces(sizes=SIZES), machine=MACHINES, share=st.floats(0.3, 1))
def test_no_plan_is_below_the_time_bound(name, trace, machine, share):
    budget = int(share * load_bytes(trace).max())
    us = added_us(name, trace, machine, budget)
    if us is not None:
        bound_us = time_bound(trace, machine, budget).added_us
        assert us >= bound_us - 1e-3 * max(1.0, bound_us)


@quick
@given(trace=traces(sizes=SIZES), machine=MACHINES, share=st.floats(0.3, 1))
def test_the_same_question_has_the_same_answer(name, trace, machine, share):
    def answer():
        try:
            return find_recompute_policy(name)(trace, machine, int(share * load_bytes(trace).max()))
        except BudgetError as error:
            return str(error)

    assert answer() == answer()


@pytest.mark.parametrize("name", sorted({*QUICK} - AT_ANY_BUDGET))
@given(trace=traces(sizes=SIZES), machine=MACHINES)
def test_what_fits_anyway_costs_nothing(name, trace, machine):
    found = find_recompute_policy(name)(trace, machine, int(load_bytes(trace).max()))
    assert not found.recomputes and not found.swaps


@policies
@pytest.mark.parametrize("percent", [90, 75])
def test_layers_are_planned_above_the_bound(name, percent):
    trace, machine = layers(4)[0], profile("pcie3")
    budget = int(load_bytes(trace).max()) * percent // 100
    us = added_us(name, trace, machine, budget)
    bound = time_bound(trace, machine, budget).added_us
    assert us is None or us >= bound * (1 - 1e-6) - 1e-6


@policies
def test_a_convolutional_network_is_planned(name):
    trace = network()
    budget = int(load_bytes(trace).max()) * 80 // 100
    us = added_us(name, trace, profile("pcie3"), budget)
    assert (us is None) == (name in TOO_LITTLE)
    assert us is None or us >= 0

"""What is particular to each policy, on traces small enough to follow by hand."""

from __future__ import annotations

import pytest

from memfit.baselines.policies import find_policy
from memfit.baselines.policies.bayes import best_weights
from memfit.errors import BudgetError, UsageError
from memfit.ir import Phase, Swap
from memfit.machine import Link, Machine
from memfit.planning.autoswap.slack import relax
from memfit.simulate import load_bytes, planned_bytes, simulate
from trace_builder import TraceBuilder

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))  # a byte takes 1 us each way
FAST = Machine("m", Link.affine(0, 1), Link.affine(0, 1))


def layers(*names, size=10, us=10.0):
    """A forward op of each name, each reading what the one before made; the backward ops read it in reverse."""
    builder = TraceBuilder()
    x = builder.alloc(size)
    made = [x]
    for name in names:
        made += builder.op(name, reads=[made[-1]], outputs=[size], duration_us=us)
    builder.free(made[-1])
    for name, storage in zip(reversed(names), reversed(made[:-1]), strict=True):
        builder.op(f"{name}_backward", reads=[storage], duration_us=us, phase=Phase.BACKWARD)
        builder.free(storage)
    return builder.build()


NET = layers("conv2d", "relu", "conv2d", "relu", "linear")


def swapped(name, trace, machine=FAST, budget=2**40):
    return {swap.storage: swap for swap in find_policy(name)(trace, machine, budget).swaps}


def test_vdnn_all_offloads_inputs_but_those_of_activations_and_of_the_last_layer():
    # Storage k is the input of layer k: 0 and 2 of convolutions, 1 and 3 of activations, 4 of the last layer.
    assert set(swapped("vdnn-all", NET)) == {0, 2}


def test_vdnn_conv_offloads_inputs_of_convolutions_only():
    net = layers("conv2d", "linear", "conv2d", "linear", "linear")
    assert set(swapped("vdnn-conv", net)) == {0, 2}
    assert set(swapped("vdnn-all", net)) == {0, 1, 2, 3}


def test_vdnn_copies_out_along_with_the_layer_and_joins_at_its_end():
    swap = swapped("vdnn-all", NET)[2]
    assert (swap.out_after, swap.free_by) == (1, 3)
    stalls = simulate(NET, LINK, find_policy("vdnn-all")(NET, LINK, 2**40)).stalls
    assert not [stall for stall in stalls if stall.op == 3]


def test_vdnn_prefetches_the_next_when_one_is_needed():
    swaps = swapped("vdnn-all", NET)
    assert swaps[2].in_start == swaps[2].in_before == 7  # nothing is offloaded after it
    assert (swaps[0].in_start, swaps[0].in_before) == (7, 9)


def test_vdnn_dyn_takes_the_first_that_fits():
    net = layers("linear", "conv2d", "linear", "linear")
    peak = int(load_bytes(net).max())
    assert not swapped("vdnn-dyn", net, budget=peak)
    assert set(swapped("vdnn-dyn", net, budget=peak - 10)) == {1}
    with pytest.raises(BudgetError, match="vdnn-all finds no plan"):
        find_policy("vdnn-dyn")(net, FAST, 10)


def test_on_demand_evicts_only_when_it_must_and_waits():
    peak = int(load_bytes(NET).max())
    plan = find_policy("on-demand-lru")(NET, LINK, peak - 10)
    assert planned_bytes(NET, plan.swaps).max() <= peak - 10
    first = min(plan.swaps, key=lambda swap: swap.out_after)
    assert first.free_by == first.out_after + 1 and first.in_start == first.in_before
    assert first.storage == 0
    assert simulate(NET, LINK, plan).overhead > 0


def test_the_clairvoyant_evicts_what_is_used_last():
    builder = TraceBuilder()
    a, b = builder.before(10), builder.before(10)
    for used in ([b], [a], [], [b], [a]):
        builder.op(reads=used, duration_us=10.0)
    builder.op(reads=[], outputs=[10])
    builder.free(2)
    trace = builder.build()
    # At op 5 both are idle; a, used at op 1 of the next iteration, later than b at op 0.
    lru, best = (find_policy(name)(trace, FAST, 20).swaps[0] for name in ("on-demand-lru", "on-demand-clairvoyant"))
    assert (lru.storage, best.storage) == (b, a)


def test_geeps_pins_what_fits_and_swaps_the_rest_ahead_of_use():
    peak = int(load_bytes(NET).max())
    assert not swapped("geeps", NET, budget=peak)
    swaps = swapped("geeps", NET, budget=peak - 10)
    assert all(swap.in_start == swap.in_before - 1 for swap in swaps.values()) and swaps


def test_superneurons_caches_outputs_of_convolutions():
    net = layers("conv2d", "relu", "conv2d", "relu", "conv2d", "linear")
    peak = int(load_bytes(net).max())
    swaps = swapped("superneurons", net, budget=peak - 10)
    assert set(swaps) <= {1, 3, 5} and swaps
    assert all(swap.in_start < swap.in_before for swap in swaps.values() if swap.in_before > 8)


def test_tflms_swaps_the_long_gaps():
    peak = int(load_bytes(NET).max())
    gaps = [s.in_before - s.out_after for s in swapped("tflms", NET, budget=peak - 10).values()]
    assert min(gaps) >= 7


def test_capuchin_takes_the_longest_free_time_first():
    peak = int(load_bytes(NET).max())
    assert set(swapped("capuchin", NET, LINK, peak - 10)) == {0}


def test_capuchin_moves_a_late_swap_in_earlier():
    machine = Machine("m", Link.affine(0, 100), Link.affine(0, 3000))
    peak = int(load_bytes(NET).max())
    plan = find_policy("capuchin")(NET, machine, peak - 20)
    assert simulate(NET, machine, plan).overhead <= 0.35


def test_autoswap_is_the_best_of_its_scores():
    peak = int(load_bytes(NET).max())
    took = [
        simulate(NET, LINK, find_policy(name)(NET, LINK, peak - 20)).iteration_us
        for name in ("autoswap", "autoswap-doa", "autoswap-aoa", "autoswap-wdoa", "autoswap-swdoa")
    ]
    assert took[0] == min(took)


def test_swap_advisor_is_no_slower_than_evicting_on_demand():
    peak = int(load_bytes(NET).max())
    took = [
        simulate(NET, LINK, find_policy(name)(NET, LINK, peak - 20)).iteration_us
        for name in ("swap-advisor", "on-demand-clairvoyant")
    ]
    assert took[0] <= took[1]


def test_weights_are_found_by_bayesian_optimisation():
    pytest.importorskip("bayes_opt")
    tried = []

    def cost(weights):
        tried.append(weights)
        return 1.0 + sum((weight + 0.5) ** 2 for weight in weights)

    found = best_weights(cost, 2)
    assert tried[:2] == [[1.0, 0.0], [0.0, 1.0]] and len(tried) == 22
    assert cost(found) < cost([1.0, 0.0])


def test_nothing_is_tried_once_it_costs_nothing():
    pytest.importorskip("bayes_opt")
    tried = []

    def cost(weights):
        tried.append(weights)
        return 0.0

    best_weights(cost, 3)
    assert len(tried) == 3


def test_without_the_package_the_remedy_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "bayes_opt", None)
    with pytest.raises(UsageError, match="memfit\\[bayes\\]"):
        best_weights(lambda weights: 1.0, 2)


@pytest.mark.parametrize("name", ["capuchin", "geeps", "swap-advisor", "tflms"])
def test_those_that_wait_only_for_room_wait_as_late_as_the_budget_allows(name):
    budget = int(load_bytes(NET).max()) - 10
    plan = find_policy(name)(NET, LINK, budget)
    assert plan.swaps and relax(NET, plan.swaps, budget) == list(plan.swaps)


def test_vdnn_joins_each_layer_though_there_is_room():
    swaps = find_policy("vdnn-all")(NET, LINK, 2**40).swaps
    assert {swap.storage: swap.free_by for swap in swaps} == {0: 1, 2: 3}


def test_a_swap_that_frees_nothing_is_left_as_it_is():
    swap = Swap(0, 10, 1, 4, 4, 9, False)
    assert relax(NET, [swap], 2**40) == [swap]

"""What is particular to each policy that recomputes, on traces small enough to follow by hand."""

from __future__ import annotations

import pytest

from memfit.baselines.policies.policy import Times
from memfit.baselines.recomputing import find_recompute_policy
from memfit.baselines.recomputing.drops import Droppables, gaps_within
from memfit.baselines.recomputing.lane import Lane, Lanes
from memfit.baselines.recomputing.neighbourhood import Neighbourhoods
from memfit.comparing.recomputing import judge
from memfit.errors import BudgetError
from memfit.ir import Phase
from memfit.machine import Link, Machine
from memfit.planning.joint.as_plan import carried_out
from memfit.simulate import load_bytes
from trace_builder import TraceBuilder

SLOW = Machine("slow", Link.affine(0, 1e6), Link.affine(0, 1e6))
FAST = Machine("fast", Link.affine(0, 1e-3), Link.affine(0, 1e-3))


def chain(*names, size=10, us=10.0, cheap_us=1.0):
    """A forward op of each name, each reading what the one before made; the backward ops read it in reverse."""
    builder = TraceBuilder()
    weight = builder.before(1)
    (x,) = builder.op("aten::embedding", reads=[weight], outputs=[size], duration_us=us)
    made = [x]
    for name in names:
        duration_us = us if name == "conv2d" else cheap_us
        made += builder.op(f"aten::{name}", reads=[made[-1]], outputs=[size], duration_us=duration_us)
    for storage in reversed(made):
        builder.op("aten::mm", reads=[storage], duration_us=us, phase=Phase.BACKWARD)
        builder.free(storage)
    return builder.build(), made


CONV, MADE = chain("conv2d", "relu", "conv2d", "relu", "conv2d", "relu", "conv2d", "relu")
PEAK = int(load_bytes(CONV).max())


def remade(name, trace=CONV, machine=SLOW, budget=PEAK - 20):
    return {one.storage for one in find_recompute_policy(name)(trace, machine, budget).recomputes}


def test_memonger_cuts_eight_storages_into_segments_of_two():
    # The second of each segment crosses into the next one, and stays.
    assert {MADE.index(storage) for storage in remade("memonger-sqrt")} == {0, 2, 4, 6}


def test_memonger_by_bytes_takes_the_fastest_segments_that_fit():
    sqrt, budget = (judge(CONV, SLOW, PEAK - 20, f"memonger-{kind}") for kind in ("sqrt", "budget"))
    assert budget.overhead <= sqrt.overhead


def test_superneurons_drops_what_is_between_convolutions():
    assert {MADE.index(storage) for storage in remade("superneurons-speed")} <= {2, 4, 6, 8}
    assert remade("superneurons-speed") == remade("superneurons-memory") == remade("superneurons-cost")


def test_memory_centric_makes_a_segment_anew_for_each_use():
    trace, made = chain("conv2d", "relu", "tanh", "relu", "conv2d")
    speed, memory = (judge(trace, SLOW, 2**40, f"superneurons-{kind}") for kind in ("speed", "memory"))
    assert speed.again_us == 3.0 and memory.again_us == 6.0
    assert judge(trace, SLOW, 2**40, "superneurons-cost").again_us == 6.0  # the segment is more than any op's set
    assert made


def test_superneurons_offloads_checkpoints_when_memory_lacks():
    found = find_recompute_policy("superneurons-speed")(CONV, FAST, 60)
    made = carried_out(CONV, found)
    assert found.swaps
    assert {MADE.index(made.storage_of[swap.storage]) for swap in found.swaps} <= {0, 1, 3, 5, 7}


def test_convolutions_are_swapped_and_activations_made_again():
    assert {MADE.index(storage) for storage in remade("swap-convolutions")} <= {2, 4, 6, 8}
    found = find_recompute_policy("swap-convolutions")(CONV, FAST, 60)
    made = carried_out(CONV, found)
    assert {MADE.index(made.storage_of[swap.storage]) for swap in found.swaps} <= {0, 1, 3, 5, 7}


def test_dtr_evicts_what_is_cheap_large_and_stale():
    assert remade("dtr", budget=PEAK - 10) == {MADE[2]}  # the oldest of the cheap ones


def test_dtr_makes_inputs_again_that_were_evicted_too():
    cell = judge(CONV, SLOW, 50, "dtr")
    assert cell.overhead is not None and cell.peak_bytes <= 50


def test_capuchin_swaps_what_hides_and_recomputes_the_rest():
    hidden = find_recompute_policy("capuchin-whole")(CONV, FAST, PEAK - 20)
    assert hidden.swaps and not hidden.recomputes
    slow = find_recompute_policy("capuchin-whole")(CONV, SLOW, PEAK - 20)
    assert slow.recomputes and not slow.swaps
    assert {MADE.index(one.storage) for one in slow.recomputes} <= {2, 4, 6, 8}


def test_the_knapsack_keeps_what_is_dear():
    assert {MADE.index(storage) for storage in remade("torch-knapsack")} <= {2, 4, 6, 8}


@pytest.mark.parametrize("name", ["memonger-budget", "dtr", "torch-knapsack", "swap-convolutions"])
def test_a_budget_below_all_it_can_do_is_refused(name):
    with pytest.raises(BudgetError, match=f"{name} finds no plan"):
        find_recompute_policy(name)(CONV, SLOW, 12)
    assert judge(CONV, SLOW, 12, name).overhead is None


def test_a_swap_that_a_remaking_reads_is_in_two_parts():
    drops = Droppables(CONV)
    relu = next(each for each in drops.waiting if each.gap.storage == MADE[2])
    made = drops.carried_out([relu]).made
    conv = next(each.gap for each in drops.waiting if each.gap.storage == MADE[1])
    parts = gaps_within(made, [conv], len(CONV.ops) - 1)
    assert {made.storage_of[gap.storage] for gap in parts} == {MADE[1]}
    assert sum(gap.before - gap.after for gap in parts) >= conv.before - conv.after


def test_copies_take_turns_on_a_lane():
    lane = Lane(100.0)
    lane.take(10.0, 20.0)
    assert lane.earliest(5.0, 5.0) == 5.0 and lane.earliest(5.0, 6.0) == 30.0
    assert lane.latest(40.0, 10.0) == 30.0 and lane.latest(35.0, 10.0) == 0.0
    assert lane.earliest(115.0, 1.0) == 130.0  # the next iteration's
    assert lane.latest(29.0, 5.0) == 5.0


def test_a_swap_hides_only_where_others_leave_time():
    machine = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))  # a byte takes 1 us each way
    lanes = Lanes(CONV, machine, Times.of(CONV))
    gap = next(each.gap for each in Droppables(CONV).waiting if each.gap.storage == MADE[0])
    first = lanes.hidden(gap)
    assert first is not None and gap.after < first.free_by < first.in_start <= gap.before
    waited_us = lanes.waited_us(gap)
    lanes.take(gap)
    assert lanes.waited_us(gap) > waited_us


def test_neighbourhoods_cost_what_is_evicted_around():
    drops = Droppables(CONV).waiting
    around = Neighbourhoods(drops)
    one, two, three = drops[1:4]
    around.evict(one.value, 5.0)
    assert around.us(two.value) == 5.0 and around.us(three.value) == 0.0
    around.evict(three.value, 7.0)
    assert around.us(two.value) == 12.0
    around.evict(two.value, 1.0)
    assert around.us(drops[4].value) == 13.0
    around.bring_back(three.value, 7.0)
    assert around.us(drops[4].value) == 0.0

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.comparing.explaining.carried import carried_jointly, carry_out
from memfit.errors import BudgetError, MemfitError
from memfit.ir import Plan, Recompute, Swap
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.joint.plan import plan_jointly
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, plan_of
from trace_builder import TraceBuilder, traces

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))


def chain():
    """Storage 1 is made by op 1 from the weight 0, idle during ops 2 to 4, and read by op 5."""
    builder = TraceBuilder()
    weight = builder.before(10)
    builder.op("aten::mm", reads=[weight], duration_us=10.0)
    (made,) = builder.op("aten::mm", reads=[weight], outputs=[40], duration_us=10.0)
    for _ in range(3):
        builder.op("aten::mm", reads=[weight], duration_us=10.0)
    builder.op("aten::mm", reads=[made, weight], duration_us=10.0)
    builder.free(made)
    return builder.build()


def test_swaps_are_found_in_their_gaps():
    trace = chain()
    carried = carry_out(trace, LINK, plan_of(trace, Swap(1, 40, 1, 2, 4, 5, False)))
    ((gap, numbers),) = carried.swaps.items()
    assert (gap.storage, gap.after, gap.before, numbers) == (1, 1, 5, [0])
    assert carried.remade == {} and carried.made.trace == carried.trace
    # 40 us out during ops 2 to 5 and back in before op 5: 30 us of ops lie in between.
    assert sum(carried.wait_us().values()) == pytest.approx(carried.timeline.stall_us) and carried.wait_us()[0] > 0


def remade_plan(trace, *swaps, recomputes, signature=None, op_count=None):
    return Plan(
        signature or trace.signature, op_count or len(trace.ops), "p", "m", 1000, tuple(swaps), recomputes=recomputes
    )


def test_remakings_are_found_in_their_gaps_and_swaps_beside_them():
    trace = chain()
    remade = (Recompute(1, 1, 5, (1,)),)
    # In the trace with remakings op 5 is op 6, since op 1 runs again as op 5; the weight's gap goes over the end.
    carried = carry_out(trace, LINK, remade_plan(trace, recomputes=remade))
    ((gap, found),) = carried.remade.items()
    assert (gap.storage, gap.after, gap.before, tuple(found)) == (1, 1, 5, remade)
    assert carried.place == (0, 1, 2, 3, 4, 6) and carried.rerun_us == 10.0
    assert carried.added == pytest.approx(10 / 60)


def test_a_swap_in_a_gap_that_only_re_runs_opened_lies_in_none_of_the_trace():
    builder = TraceBuilder()
    (first,) = builder.op("aten::ones", outputs=[40])
    (second,) = builder.op("aten::ones", outputs=[30])
    builder.op("aten::ones", outputs=[1])
    builder.op("aten::mm", reads=[first])
    builder.op("aten::mm", reads=[first, second])
    trace = builder.build()
    plan = remade_plan(trace, Swap(0, 40, 3, 4, 5, 5, False), recomputes=(Recompute(second, 1, 4, (1,)),))
    carried = carry_out(trace, LINK, plan)
    assert carried.swaps == {} and [gap.storage for gap in carried.remade] == [second]


def test_a_plan_of_another_trace_is_refused():
    trace = chain()
    for recomputes in ((), (Recompute(1, 1, 5, (1,)),)):
        with pytest.raises(MemfitError, match="the plan is for"):
            carry_out(trace, LINK, remade_plan(trace, recomputes=recomputes, signature="other"))


def test_a_plan_that_breaks_a_promise_is_refused():
    trace = chain()
    with pytest.raises(MemfitError, match="budget"):
        carry_out(trace, LINK, replace(plan_of(trace), budget_bytes=20))


def test_an_op_that_runs_for_two_storages_is_paid_for_once():
    builder = TraceBuilder()
    weight = builder.before(10)
    first, second = builder.op("aten::split", reads=[weight], outputs=[40, 40], duration_us=8.0)
    builder.op("aten::mm", reads=[weight])
    builder.op("aten::mm", reads=[first, second, weight])
    trace = builder.build()
    recomputes = tuple(Recompute(s, 0, 2, (0,)) for s in (first, second))
    carried = carry_out(trace, LINK, remade_plan(trace, recomputes=recomputes))
    assert list(carried.again_us.values()) == [4.0, 4.0] and carried.rerun_us == 8.0


@given(traces(max_ops=12), MACHINES, st.data())
def test_every_absence_of_a_joint_plan_lies_in_the_gap_that_it_is_found_in(trace, machine, data):
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    try:
        found = plan_jointly(trace, machine, data.draw(st.integers(1, peak)), effort=0.02)
    except BudgetError:
        return
    carried = carried_jointly(trace, machine, found)
    assert {one for each in carried.remade.values() for one in each} == set(found.recomputes)
    assert sum(carried.again_us.values()) == pytest.approx(carried.rerun_us, abs=1e-3)
    for gap, numbers in carried.swaps.items():
        place, count = carried.place, len(carried.made.op_of)
        end = place[gap.before] + gap.cyclic * count
        for swap in (carried.plan.swaps[number] for number in numbers):
            assert carried.made.storage_of[swap.storage] == gap.storage
            assert place[gap.after] <= swap.out_after < swap.in_before <= end
            assert end_of(carried.trace, gap) > gap.after


def test_layers_that_are_made_again_and_swapped_are_all_found():
    trace, _ = layers(6)
    link = Link.affine(0.0, 100.0)
    found = plan_jointly(trace, Machine("m", link, link), 400, effort=0.1)
    carried = carried_jointly(trace, Machine("m", link, link), found)
    assert sum(map(len, carried.swaps.values())) + sum(map(len, carried.remade.values())) > 0

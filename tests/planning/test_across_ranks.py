"""Many ranks of one trace, against the simulator of one and closed forms for simple cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from memfit.ir import Category, Op, Swap, Trace
from memfit.machine import Link, Machine
from memfit.planning.across_ranks import Ranks, collectives, run_together
from memfit.simulate import Simulator
from swap_builder import MACHINES, plans
from trace_builder import TraceBuilder

GENERATED = (Phase.explicit, Phase.generate)  # a failure is not made smaller, which would take minutes
LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 2000))  # a byte takes 1 us out, 2 us in


def trace_of(*durations_us: float, names: tuple[str, ...] = ()) -> Trace:
    """Ops of these durations; the first and the last use a parameter of 10 bytes."""
    builder = TraceBuilder()
    parameter = builder.before(10)
    last = len(durations_us) - 1
    for at, duration_us in enumerate(durations_us):
        used = [parameter] if at in (0, last) else []
        builder.op(names[at] if names else "op", reads=used, duration_us=duration_us)
    return builder.build()


def away(trace: Trace) -> Swap:
    """The parameter is away between its uses."""
    last = len(trace.ops) - 1
    return Swap(0, 10, 0, last - 1, last - 1, last, cyclic=False)


def slower(machine: Machine, factor: float) -> Machine:
    return replace(machine, out=machine.out.slowed(factor), into=machine.into.slowed(factor))


@settings(phases=GENERATED)
@given(plans(), MACHINES)
def test_one_rank_is_the_simulators(case, machine):
    trace, plan = case
    alone = Simulator(trace, machine)
    found = alone.run(alone.columns(plan.swaps))
    if found.is_steady:
        together = run_together(trace, machine, plan.swaps, Ranks(1, 1), iterations=4, warm_up=16)
        assert together.iteration_us == pytest.approx(found.iteration_us)
        near = 1e-6 * (1 + found.iteration_us)
        assert together.stall_us == pytest.approx(sum(found.stall_us), abs=near)
        assert together.skew_us == pytest.approx(0, abs=near)


@settings(phases=GENERATED)
@given(plans(), MACHINES, st.integers(2, 5), st.integers(1, 3))
def test_equal_ranks_on_a_tier_each_have_its_part_and_nodes_do_not_disturb_each_other(case, machine, per_node, nodes):
    trace, plan = case
    together = run_together(trace, machine, plan.swaps, Ranks(per_node * nodes, per_node), 4, 16)
    alone = run_together(trace, slower(machine, per_node), plan.swaps, Ranks(1, 1), 4, 16)
    assert together.iteration_us == pytest.approx(alone.iteration_us)
    near = 1e-6 * (1 + alone.iteration_us)
    assert together.stall_us == pytest.approx(alone.stall_us, abs=near)
    assert together.skew_us == pytest.approx(0, abs=near)


def test_what_ranks_of_a_node_wait_for_by_hand():
    trace = trace_of(5, 8, 1, 5)
    one = run_together(trace, LINK, [away(trace)], Ranks(1, 1))
    assert (one.iteration_us, one.stall_us) == pytest.approx((5 + 10 + 1 + 19 + 5, 2 + 19))
    four = run_together(trace, LINK, [away(trace)], Ranks(8, 4))  # out in 40 us instead of 10, in in 80 instead of 20
    assert (four.iteration_us, four.stall_us) == pytest.approx((5 + 40 + 1 + 79 + 5, 32 + 79))


@pytest.mark.parametrize("count", [2, 8, 64])
def test_of_uniform_times_the_longest_is_what_order_statistics_say(count):
    spread, trace = 0.1, trace_of(50, 50)
    together = run_together(trace, LINK, [], Ranks(count, count, spread), iterations=400)
    longest = 1 + spread * (count - 1) / (count + 1)
    assert together.iteration_us == pytest.approx(100 * longest, rel=0.004)
    assert together.skew_us == pytest.approx(100 * (longest - 1), rel=0.1)


def test_ranks_meet_at_each_collective_and_a_ring_takes_its_time():
    names = ("op", "c10d::allreduce_", "op", "_c10d_functional::wait_tensor")
    trace = trace_of(50, 10, 50, 10, names=names)
    assert collectives(trace) == [1]
    builder = TraceBuilder()
    weight, gradient = builder.before(4000), builder.before(1000, Category.GRADIENT)
    builder.op(reads=[weight], writes=[gradient], duration_us=100)
    data_parallel = builder.build()
    ranks = Ranks(4, 4, network_bytes_per_s=1e9)
    at_the_end = run_together(data_parallel, LINK, [], ranks)
    assert at_the_end.iteration_us == pytest.approx(100 + 2 * 3 / 4 * 4000 / 1e9 * 1e6)
    reduces = replace(data_parallel, ops=(*data_parallel.ops, reduce_of(gradient)), ticks=data_parallel.ticks + 1)
    assert run_together(reduces, LINK, [], ranks).iteration_us == pytest.approx(105 + 2 * 3 / 4 * 1000 / 1e9 * 1e6)


def reduce_of(storage: int) -> Op:
    builder = TraceBuilder()
    builder.before(1), builder.before(1)
    builder.op("c10d::allreduce_", writes=[storage], duration_us=5)
    return builder.build().ops[0]


def test_a_rank_that_is_late_for_its_copies_delays_the_others():
    trace = trace_of(5, 8, 1, 5)
    spread = run_together(trace, LINK, [away(trace)], Ranks(8, 1, 0.3), iterations=50)
    without = run_together(trace, LINK, [away(trace)], Ranks(8, 1), iterations=50)
    assert spread.iteration_us > without.iteration_us and spread.skew_us > 0
    assert spread.iteration_us < 1.3 * without.iteration_us


def test_a_thousand_ranks():
    trace = trace_of(*[5.0] * 40)
    together = run_together(trace, LINK, [away(trace)], Ranks(1024, 8, 0.05), iterations=4)
    assert together.iteration_us >= 200 and together.skew_us > 0

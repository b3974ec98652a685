"""The policies of managed memory: what each brings in, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.baselines.paging import PAGING
from memfit.baselines.paging.deepum import deepum
from memfit.baselines.paging.managed import Managed, managed_faults
from memfit.baselines.paging.oc_dnn import oc_dnn
from memfit.baselines.paging.um_naive import um_naive
from memfit.errors import BudgetError
from memfit.ir import Phase, Trace
from memfit.machine import MANAGED, Faults, Link, Machine, profile
from memfit.planning.autoswap import smallest_budget
from memfit.simulate import load_bytes
from trace_builder import TraceBuilder

MIB = 1 << 20
SLOW_OPS = 2000.0  # microseconds: a block comes in in 84


def network(layers: int = 12, size: int = 4 * MIB, duration_us: float = SLOW_OPS) -> Trace:
    """A chain whose activations are used again in the reverse order."""
    builder = TraceBuilder(alignment=512)
    weights = [builder.before(size) for _ in range(layers)]
    x, saved = builder.alloc(size), []
    for weight in weights:
        (y,) = builder.op("aten::mul", reads=[x, weight], outputs=[size], duration_us=duration_us)
        saved.append((x, weight))
        x = y
    grad = x
    for x, weight in reversed(saved):
        (dx,) = builder.op("aten::mul", reads=[grad, x, weight], outputs=[size], duration_us=duration_us,
                           phase=Phase.BACKWARD)  # fmt: skip
        builder.free(grad, x)
        builder.op("aten::add_", reads=[weight], writes=[weight], duration_us=duration_us, phase=Phase.OPTIMIZER)
        grad = dx
    builder.free(grad)
    return builder.build()


TRACE, MACHINE = network(), profile("pcie4")
PEAK = int(load_bytes(TRACE).max())


def test_without_planning_each_fault_is_waited_for():
    run = um_naive(TRACE, MACHINE, PEAK * 6 // 10)
    copies_us = run.bytes_in / 25.2e3 + run.bytes_out / 25.2e3
    assert run.faults > 0 and run.iteration_us > run.compute_us
    # Ops of 2 ms hide the copies of what they miss, but no latency.
    assert run.iteration_us - run.compute_us >= run.faults / MANAGED.chunks_per_fault * MANAGED.fault_us
    assert run.iteration_us - run.compute_us <= copies_us + run.faults * MANAGED.fault_us


def test_what_is_learnt_hides_what_was_missed():
    naive, learnt = um_naive(TRACE, MACHINE, PEAK * 6 // 10), deepum(TRACE, MACHINE, PEAK * 6 // 10)
    assert naive.faults > 20 * max(learnt.faults, 1)
    assert learnt.overhead < 0.01 < naive.overhead


def test_the_next_ops_storages_come_in_while_one_runs():
    naive, ahead = um_naive(TRACE, MACHINE, PEAK * 6 // 10), oc_dnn(TRACE, MACHINE, PEAK * 6 // 10)
    assert ahead.faults < naive.faults / 5
    assert ahead.overhead < naive.overhead


def test_evicting_after_the_last_use_moves_the_same_at_any_budget_that_does_not_hold_all():
    moved = {share: oc_dnn(TRACE, MACHINE, PEAK * share // 100).bytes_in for share in (100, 80, 60)}
    assert moved[100] == 0 < moved[80] == moved[60]


@pytest.mark.parametrize("name", PAGING)
def test_each_runs_below_the_smallest_budget_of_plans(name):
    trace = network(layers=4, size=16 * MIB)
    floor, _ = smallest_budget(trace)
    run = PAGING[name](trace, MACHINE, floor // 4)
    assert run.peak_bytes <= floor // 4 and run.overhead > 0


@pytest.mark.parametrize("name", PAGING)
def test_a_budget_without_room_for_a_block_is_refused_with_what_it_takes(name):
    builder = TraceBuilder(alignment=512)
    builder.op("aten::add", reads=[builder.before(8 * MIB), builder.before(4096)])
    with pytest.raises(BudgetError) as error:
        PAGING[name](builder.build(), MACHINE, MIB)
    assert error.value.required_bytes == MANAGED.block_bytes + 4096
    assert PAGING[name](builder.build(), MACHINE, MANAGED.block_bytes + 4096).peak_bytes <= MANAGED.block_bytes + 4096


def test_a_machine_may_say_how_its_managed_memory_comes_in():
    its = replace(MANAGED, fault_us=300.0)
    slow = replace(MACHINE, faults=its)
    assert managed_faults(slow) is its and managed_faults(MACHINE) is MANAGED
    assert managed_faults(replace(MACHINE, faults=Faults(1.0, 4096, 4096))) is MANAGED  # a window is not managed memory
    assert um_naive(TRACE, slow, PEAK // 2).overhead > 5 * um_naive(TRACE, MACHINE, PEAK // 2).overhead


def test_small_storages_never_leave():
    builder = TraceBuilder(alignment=512)
    small = [builder.before(4096) for _ in range(64)]
    big = builder.before(4 * MIB)
    builder.op("aten::add", reads=[*small, big])
    managed = Managed.of(builder.build(), MACHINE, 3 * MIB, 2)
    assert managed.fixed_bytes.tolist() == [64 * 4096]
    run = managed.finished("x", managed.run())
    assert run.bytes_in == 4 * MIB and run.peak_bytes <= 3 * MIB


def test_a_faster_link_costs_less():
    links = [Machine("m", Link.of_bandwidth(rate), Link.of_bandwidth(rate)) for rate in (5.0, 50.0)]
    for policy in PAGING.values():
        slow, fast = (policy(network(duration_us=10.0), link, PEAK // 2).overhead for link in links)
        assert fast < slow

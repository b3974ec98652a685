"""Rows between remakings: without them the bounds below are lower, those of the first trace 1 instead of 34."""

import pytest

from memfit.machine import Link, Machine
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import RELAXED, Moves, time_bound
from trace_builder import TraceBuilder

SLOW = Machine("slow", *(Link.of_bandwidth(1e-9, latency_us=0.0) for _ in range(2)))


def served(y_bytes=10):
    """x (10 bytes) finds no room for its own use if it is made again then; before, it is only for y, which is dear."""
    builder = TraceBuilder()
    weight = builder.before(1)
    (x,) = builder.op("aten::relu", reads=[weight], outputs=[10], scratch=[30], duration_us=1.0)
    (y,) = builder.op("aten::mm", reads=[x], outputs=[y_bytes], duration_us=100.0)
    (large,) = builder.op("aten::mm", reads=[weight], outputs=[80])
    builder.free(large)
    builder.op("aten::mm", reads=[y])
    (other,) = builder.op("aten::mm", reads=[weight], outputs=[60])
    builder.op("aten::mm", reads=[x, other])
    builder.free(other)
    builder.op("aten::mm", reads=[x, y])
    return builder.build()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_is_made_again_before_its_use_is_so_for_something_else_that_is_too(depth):
    plan = plan_jointly(served(), SLOW, 91, moves=Moves.RECOMPUTE)
    assert plan.added_us == pytest.approx(100)
    assert 30 < time_bound(served(), SLOW, 91, moves=Moves.RECOMPUTE, depth=depth).added_us <= 100


def along():
    """x (10 bytes) finds no room for its own use; before, it comes along with a small one of the same op."""
    builder = TraceBuilder()
    weight = builder.before(1)
    x, small = builder.op("aten::relu", reads=[weight], outputs=[10, 2], scratch=[30], duration_us=1.0)
    (large,) = builder.op("aten::mm", reads=[weight], outputs=[80])
    builder.free(large)
    builder.op("aten::mm", reads=[small])
    (other,) = builder.op("aten::mm", reads=[weight], outputs=[60])
    builder.op("aten::mm", reads=[x, other])
    return builder.build()


@pytest.mark.parametrize(("trace", "budget_bytes"), [(served(5), 86), (along(), 81)])
def test_it_may_be_for_a_storage_that_has_no_columns(trace, budget_bytes):
    plan = plan_jointly(trace, SLOW, budget_bytes, moves=Moves.RECOMPUTE)
    coarse = time_bound(trace, SLOW, budget_bytes, moves=Moves.RECOMPUTE, least_bytes=6)
    assert 0 < coarse.added_us <= plan.added_us
    assert plan.bound.added_us <= plan.added_us


def test_storages_that_leave_as_wholes_bound_the_time_from_higher_up():
    found = [time_bound(served(), SLOW, 91, moves=Moves.RECOMPUTE, whole_bytes=least) for least in (1, 11)]
    assert [each.added_us for each in found] == pytest.approx([100, 34])
    assert found[0].relaxed == (RELAXED[0] + ", below `whole_bytes`", *RELAXED[1:])


def rows():
    """One storage is the input of two, each the input of more; all are read again after a large one."""
    builder = TraceBuilder()
    weight = builder.before(1)
    (first,) = builder.op("aten::mm", reads=[weight], outputs=[20])
    p, q = builder.op("aten::mm", reads=[first], outputs=[20, 20])
    builder.free(first)
    (r,) = builder.op("aten::mm", reads=[p], outputs=[20])
    builder.free(p)
    a, b = builder.op("aten::mm", reads=[q], outputs=[20, 20])
    c, d = builder.op("aten::mm", reads=[q], outputs=[20, 20])
    (large,) = builder.op("aten::mm", reads=[weight], outputs=[100])
    builder.free(large)
    for storage in (d, c, b, a, r, q):
        builder.op("aten::mm", reads=[storage], duration_us=10.0)
        builder.free(storage)
    return builder.build()


def test_what_is_nowhere_as_long_as_another_may_be_made_from_it_keeps_that_from_being_made():
    bound = time_bound(rows(), SLOW, 110, moves=Moves.RECOMPUTE, depth=0).added_us
    plan = plan_jointly(rows(), SLOW, 110, moves=Moves.RECOMPUTE)
    assert 5 < bound <= plan.added_us  # without it 4.3

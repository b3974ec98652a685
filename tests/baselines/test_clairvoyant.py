import pytest
from hypothesis import given

from memfit.baselines.clairvoyant import Traffic, clairvoyant
from memfit.errors import BudgetError
from memfit.planning.lifetimes import minimum_budget, peak_live
from trace_builder import TraceBuilder, traces


def weights_read_in_turn(order, sizes, alignment=1):
    builder = TraceBuilder(alignment)
    ids = [builder.before(size) for size in sizes]
    for position in order:
        builder.op(reads=[ids[position]])
    return builder.build()


def test_what_is_only_read_leaves_for_free():
    trace = weights_read_in_turn([0, 1, 2], [10, 10, 10])
    assert clairvoyant(trace, 30) == Traffic(0, 0)
    # Cyclic reads of three through room for two: one of each pair of reads finds its weight in place.
    assert clairvoyant(trace, 20).bytes_out == 0
    assert 10 <= clairvoyant(trace, 20).bytes_in <= 20
    assert clairvoyant(trace, 10) == Traffic(0, 30)


def test_what_is_written_is_copied_out_and_even_an_overwrite_is_copied_in():
    builder = TraceBuilder()
    a, b = builder.before(10), builder.before(7)
    builder.op(writes=[a])
    builder.op(reads=[b])
    assert clairvoyant(builder.build(), 10) == Traffic(10, 17)


def test_the_furthest_next_use_goes_first():
    builder = TraceBuilder()
    (near,) = builder.op(outputs=[10])
    (far,) = builder.op(outputs=[9])
    builder.op(scratch=[10])
    builder.op(reads=[near])
    builder.op(reads=[far])
    builder.free(near, far)
    assert clairvoyant(builder.build(), 20) == Traffic(9, 9)


def test_what_is_freed_while_out_never_comes_back():
    builder = TraceBuilder()
    (out,) = builder.op(outputs=[10])
    builder.op(scratch=[10])
    builder.free(out)
    assert clairvoyant(builder.build(), 10) == Traffic(10, 0)


def test_a_gradient_freed_in_the_next_iteration_is_carried_over():
    builder = TraceBuilder()
    old = builder.before(10)
    builder.op(reads=[old])
    builder.free(old)
    builder.op(outputs=[10])
    builder.op(scratch=[8])
    trace = builder.build()
    assert clairvoyant(trace, 18) == Traffic(0, 0)
    assert clairvoyant(trace, 17) == Traffic(10, 10)


def test_what_is_allocated_between_ops_must_fit_at_once():
    builder = TraceBuilder()
    weight, old = builder.before(10), builder.before(10)
    builder.free(old)
    builder.op(reads=[weight])
    builder.alloc(10)
    # Nothing needs room before the next iteration frees the second storage, yet both were alive at once.
    assert clairvoyant(builder.build(), 15) == Traffic(10, 0)


def test_room_is_counted_aligned_and_traffic_exact():
    trace = weights_read_in_turn([0, 1], [65, 65], alignment=64)
    assert clairvoyant(trace, 256) == Traffic(0, 0)
    assert clairvoyant(trace, 255) == Traffic(0, 130)


def test_pinned_bytes_are_not_to_be_had():
    builder = TraceBuilder(pinned_bytes=100)
    (a,) = builder.op(outputs=[10])
    builder.op(reads=[a], scratch=[10])
    trace = builder.build()
    assert clairvoyant(trace, 120) == Traffic(0, 0)
    with pytest.raises(BudgetError):
        clairvoyant(trace, 119)


def test_a_budget_below_one_op_is_refused_with_the_op_and_the_smallest_that_works():
    builder = TraceBuilder(alignment=64, pinned_bytes=3)
    weight = builder.before(100)
    builder.op("aten::relu", outputs=[10])
    builder.op("aten::mm", reads=[weight], outputs=[100], source="train.py:7")
    trace = builder.build()
    with pytest.raises(BudgetError, match="aten::mm at train.py:7") as caught:
        clairvoyant(trace, 258)
    assert caught.value.required_bytes == 259 == minimum_budget(trace)[0]
    assert (caught.value.op, caught.value.source) == ("aten::mm", "train.py:7")
    assert clairvoyant(trace, 259)


@given(traces())
def test_the_peak_moves_nothing_and_the_minimum_is_the_smallest_that_works(trace):
    minimum = minimum_budget(trace)[0]
    unmoved = max(peak_live(trace, aligned=True)[0] + trace.pinned_bytes, minimum) + 10**6
    carried_over = [s for s in trace.storages if s.born_before != trace.outlives(s)]
    if not carried_over:
        assert clairvoyant(trace, unmoved) == Traffic(0, 0)
    assert clairvoyant(trace, minimum).bytes_in >= 0
    with pytest.raises(BudgetError) as caught:
        clairvoyant(trace, minimum - 1)
    assert caught.value.required_bytes == minimum

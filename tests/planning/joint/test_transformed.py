import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import Phase
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import added_us, arrange
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import live_bytes
from memfit.simulate import load_bytes
from memfit.validate_joint import check_joint
from trace_builder import TraceBuilder, traces


def transform(trace, chosen, passing=()):
    values = Values.of(trace)
    recomputes = arrange(values, chosen, passing)
    return recomputes, with_recomputes(values, recomputes), added_us(values, recomputes)


def assert_same_values(trace, made):
    assert check_joint(trace, made) is None


@given(traces(max_ops=14), st.data())
def test_every_op_reads_what_it_read_before_and_live_bytes_never_fall_below_nothing(trace, data):
    trace = corrected(trace)
    found = [gap for gap in candidates(trace, ANY_GAP) if not gap.cyclic]
    chosen, passing = (data.draw(st.lists(st.sampled_from(found), unique=True)) if found else [] for _ in range(2))
    recomputes, made, us = transform(trace, chosen, passing)
    assert_same_values(trace, made)
    assert live_bytes(made.trace).min() >= 0
    durations = [op.duration_us for op in made.trace.ops] + [-op.duration_us for op in trace.ops]
    assert math.fsum(durations) == pytest.approx(us)
    assert sorted(t for s in made.trace.storages for t in (s.alloc_tick, s.free_tick) if 0 <= t < made.trace.ticks) == (
        list(range(made.trace.ticks))
    )
    assert {one.storage for one in recomputes} <= {gap.storage for gap in chosen}


def layers(count=3):
    """A chain of norms and in-place activations whose outputs the backward part reads in reverse."""
    builder = TraceBuilder()
    weight, mean = builder.before(8), builder.before(4)
    (x,) = builder.op("aten::embedding", reads=[weight], outputs=[64])
    saved = [x]
    for _ in range(count):
        (y,) = builder.op("aten::conv2d", reads=[saved[-1], weight], outputs=[64], scratch=[16], duration_us=5.0)
        (z,) = builder.op("aten::batch_norm", reads=[y, mean], writes=[mean], outputs=[64], duration_us=2.0)
        builder.op("aten::relu_", reads=[z], writes=[z], duration_us=1.0)
        builder.free(y)
        saved.append(z)
    builder.op("aten::sum", reads=[saved[-1]])
    for each in reversed(saved):
        (gradient,) = builder.op("aten::mm", reads=[each, weight], outputs=[8], phase=Phase.BACKWARD)
        builder.free(each, gradient)
    return builder.build(), saved


def test_a_layer_is_made_again_from_the_one_before_it():
    trace, saved = layers()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    recomputes, made, us = transform(trace, [gaps[saved[2]]])
    (one,) = recomputes
    assert one.ops == (4, 5, 6) and us == 8.0
    assert [op.name for op in made.trace.ops[one.before : one.before + 3]] == [
        "aten::conv2d", "aten::batch_norm", "aten::relu_"]  # fmt: skip
    assert_same_values(trace, made)
    assert load_bytes(made.trace)[one.after + 1] == load_bytes(trace)[one.after + 1] - 64


def test_a_dropped_input_is_made_first_and_stays_for_its_own_use():
    trace, saved = layers()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    recomputes, made, us = transform(trace, [gaps[saved[1]], gaps[saved[2]]])
    assert [one.storage for one in recomputes] == [saved[1], saved[2]]
    assert len({one.before for one in recomputes}) == 1 and us == 16.0
    assert_same_values(trace, made)


def test_what_cannot_be_made_when_it_is_needed_is_left_out():
    trace, saved = layers()
    weight = next(gap for gap in candidates(trace, ANY_GAP) if gap.storage == 0 and not gap.cyclic)
    assert arrange(Values.of(trace), [weight]) == []


def test_an_input_in_passing_is_made_on_the_way_and_again_for_its_own_use():
    trace, saved = layers()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    values = Values.of(trace)
    chosen = [gaps[saved[1]], gaps[saved[2]]]
    recomputes = arrange(values, chosen, passing=[gaps[saved[1]]])
    made = with_recomputes(values, recomputes)
    assert [(one.storage, len(one.ops)) for one in recomputes] == [(saved[2], 6), (saved[1], 3)]
    assert added_us(values, recomputes) == 24.0
    assert_same_values(trace, made)


def pooling():
    """An op with two outputs, which the backward part reads one after the other."""
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::embedding", reads=[weight], outputs=[64])
    pooled, indices = builder.op("aten::max_pool2d", reads=[x], outputs=[32, 16], duration_us=5.0)
    builder.op("aten::sum", reads=[pooled])
    builder.op("aten::sum", reads=[x])
    for each in (pooled, x, indices):
        builder.op("aten::mm", reads=[each, weight], outputs=[8], phase=Phase.BACKWARD)
        builder.free(each)
    return builder.build(), pooled, indices


def test_what_an_op_makes_besides_stays_for_its_own_use():
    trace, pooled, indices = pooling()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    recomputes, made, us = transform(trace, [gaps[pooled], gaps[indices]])
    assert us == 5.0 and {(one.storage, one.before) for one in recomputes} == {(pooled, 4), (indices, 4)}
    assert_same_values(trace, made)


def test_what_an_op_makes_besides_and_passes_is_made_again_for_its_own_use():
    trace, pooled, indices = pooling()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    recomputes, made, us = transform(trace, [gaps[pooled], gaps[indices]], [gaps[indices]])
    assert us == 11.0 and {(one.storage, one.before) for one in recomputes} == {(pooled, 4), (indices, 6)}
    assert_same_values(trace, made)


def test_what_is_made_between_two_ops_and_dies_in_the_next_is_not_made_when_that_runs_again():
    builder = TraceBuilder()
    weight = builder.before(8)
    builder.op("aten::mm", reads=[weight], outputs=[8])
    between = builder.alloc(16)
    (saved,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    builder.free(between)  # before the next op begins: to the trace, inside this one
    builder.op("aten::mm", reads=[weight], outputs=[8])
    builder.op("aten::sum", reads=[saved], phase=Phase.BACKWARD)
    trace = builder.build()
    (gap,) = (gap for gap in candidates(trace, ANY_GAP) if gap.storage == saved)
    recomputes, made, _ = transform(trace, [gap])
    assert [one.ops for one in recomputes] == [(1,)]
    assert_same_values(trace, made)
    assert made.storage_of.count(between) == 1


def test_the_replay_sees_a_value_that_is_another():
    trace, saved = layers()
    gaps = {gap.storage: gap for gap in candidates(trace, ANY_GAP)}
    values = Values.of(trace)
    (one,) = arrange(values, [gaps[saved[2]]])
    wrong = with_recomputes(values, [replace(one, ops=one.ops[:-1])])  # without its activation
    with pytest.raises(AssertionError):
        assert_same_values(trace, wrong)

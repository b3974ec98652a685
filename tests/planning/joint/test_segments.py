import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit.planning.joint.segments import Segments


def test_each_op_ends_a_segment_if_there_are_enough():
    segments = Segments.of(np.array([1.0, 2.0, 4.0]), np.array([5, 9, 7]), 3)
    assert segments.ends == (0, 1, 2) and segments.span_us == (4.0, 1.0, 2.0)
    assert [segments.running(op) for op in range(3)] == [1, 2, 0]
    assert [segments.until(op) for op in range(5)] == [0, 1, 2, 0, 1]


def test_otherwise_the_fullest_op_of_each_slice_does():
    segments = Segments.of(np.ones(6), np.array([1, 3, 2, 9, 8, 7]), 2)
    assert segments.ends == (1, 3) and segments.span_us == (4.0, 2.0)
    assert [segments.running(op) for op in range(6)] == [0, 1, 1, 0, 0, 0]
    assert [segments.until(op) for op in range(6)] == [0, 0, 1, 1, 0, 0]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.integers(1, 12), st.data())
def test_spans_make_up_the_iteration_and_ends_lie_within(ops, most, data):
    duration_us, load = (np.array(column) for column in zip(*ops, strict=True))
    segments = Segments.of(duration_us.astype(float), load, most)
    assert len(segments.ends) <= max(most, 1) or len(ops) <= most
    assert abs(sum(segments.span_us) - duration_us.sum()) < 1e-9
    begin = data.draw(st.integers(0, 2 * len(ops) - 1))
    end = data.draw(st.integers(begin, begin + len(ops)))
    inside = {segments.ends.index(op % len(ops)) for op in range(begin, end) if op % len(ops) in segments.ends}
    assert set(segments.within(begin, end)) == inside
    first, last = sorted(op % len(ops) for op in (begin, end))
    assert segments.befores(first, last) == {segments.until(op) for op in range(first, last + 1)}

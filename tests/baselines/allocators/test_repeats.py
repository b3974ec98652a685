import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from memfit.baselines.allocators.repeats import longest_repeat


def by_looking_everywhere(tokens):
    for length in range(len(tokens) // 2, 0, -1):
        for start in range(len(tokens) - 2 * length + 1):
            if tokens[start : start + length] == tokens[start + length : start + 2 * length]:
                return start, length
    return None


@given(st.lists(st.integers(0, 2), max_size=40))
@example([])
@example([1])
@example([1, 1])
@example([1, 2, 1, 2, 1])
@example([0, 1, 2, 3, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3])
def test_the_longest_then_the_earliest(tokens):
    assert longest_repeat(np.array(tokens, dtype=np.int64)) == by_looking_everywhere(tokens)


def test_a_long_stream_is_quick():
    rng = np.random.default_rng(0)
    iteration = rng.integers(0, 1 << 40, 9_000)
    tokens = np.concatenate((rng.integers(0, 1 << 40, 7_001), np.tile(iteration, 2), [5] * 10))
    assert longest_repeat(tokens) == (7_001, 9_000)

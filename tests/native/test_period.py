from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit._native import find_period


def period(tokens):
    return find_period(np.array(tokens, dtype=np.uint64))


def is_power(block):
    return any(len(block) % k == 0 and block == block[:k] * (len(block) // k) for k in range(1, len(block)))


def brute_force(tokens):
    count = len(tokens)
    for length in range(count // 2, 0, -1):
        block = tokens[count - length :]
        if tokens[count - 2 * length : count - length] == block and not is_power(block):
            start = count - 2 * length
            while start > 0 and tokens[start - 1] == tokens[start - 1 + length]:
                start -= 1
            return start, length
    return None


def test_every_short_stream_of_two_and_three_tokens():
    for alphabet, longest in ((2, 14), (3, 8)):
        for count in range(longest + 1):
            for tokens in product(range(alphabet), repeat=count):
                assert period(tokens) == brute_force(list(tokens)), tokens


@given(
    prefix=st.lists(st.integers(0, 2), max_size=20),
    block=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    repeats=st.integers(2, 5),
    rest=st.integers(0, 11),
)
def test_repeated_blocks_after_a_warm_up(prefix, block, repeats, rest):
    tokens = prefix + block * repeats + block[: min(rest, len(block))]
    assert period(tokens) == brute_force(tokens)


def test_the_iteration_wins_over_the_micro_batches_inside_it():
    iteration = [1, 2, 1, 2, 1, 2, 9]
    warm_up = [5, 5, 7]
    assert period(warm_up + iteration * 2) == (3, 7)
    # Cut inside the second iteration, only the micro-batches have repeated.
    assert period(warm_up + iteration + [1, 2, 1, 2]) == (10, 2)


def test_a_run_of_one_token_has_period_one():
    assert period([4, 3, 3, 3, 3, 3]) == (1, 1)


def test_nothing_repeats():
    assert period([]) is None
    assert period([1]) is None
    assert period([1, 2, 3, 1, 2]) is None


def test_tokens_differ_in_all_sixty_four_bits():
    high = 2**63
    assert period([high, 1, high, 1]) == (0, 2)
    assert period([high, 0, 1, 0]) is None


def test_long_streams_need_linear_time():
    # Quadratic work on these would take hours.
    count = 1_000_000
    assert period(np.zeros(count)) == (0, 1)
    stream = np.zeros(count)
    stream[count // 2 - 1 :: count // 2] = 1
    assert period(stream) == (0, count // 2)
    assert period(np.arange(count)) is None

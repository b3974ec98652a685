from hypothesis import given
from hypothesis import strategies as st

from events_builder import stream
from memfit.baselines.allocators.profile_guided import profile_guided


def test_the_longest_comes_first_and_then_the_largest():
    # Lifetimes, in steps: 0 [0, 5), 1 [1, 3), 2 [2, 4).
    events = stream(10, 70, 80, "-1", "-2", "-0")
    assert profile_guided(events).offsets == {0: 0, 2: 10, 1: 90}
    # Now 1 [1, 4), 2 [2, 3).
    events = stream(10, 70, 80, "-2", "-1", "-0")
    assert profile_guided(events).offsets == {0: 0, 1: 10, 2: 80}
    # Equally long ones [0, 2) and [1, 3): the larger one.
    assert profile_guided(stream(10, 70, "-0", "-1")).offsets == {1: 0, 0: 70}


def test_lines_beside_a_block_are_filled_at_their_own_height():
    # 0 [0, 3), 1 [3, 6): neither is over the other.
    packed = profile_guided(stream(10, 1, "-1", "-0", 50, 1, "-3", "-2"))
    assert packed.offsets[0] == packed.offsets[2] == 0
    assert packed.offsets[1] == 10 and packed.offsets[3] == 50
    assert packed.footprint_bytes == 51


def test_a_line_nothing_fits_on_is_lifted_to_its_lower_neighbour():
    # 0 [0, 5) is the longest, then 1 [2, 7), which does not fit beside it: the rest of the ground is lifted to 40.
    packed = profile_guided(stream(40, 7, "-1", 30, 8, "-0", "-3", "-2"))
    assert packed.offsets[0] == 0
    assert packed.offsets[2] == 40


def test_of_two_neighbours_the_lower_one_decides():
    # 0 [0, 4) and 3 [6, 9) lie on the ground; between them nothing fits, but over 0 and the gap 2 [3, 5) does.
    events = stream(10, 1, "-1", 5, "-0", "-2", 30, 1, "-4", "-3")
    offsets = profile_guided(events).offsets
    assert (offsets[0], offsets[3], offsets[2]) == (0, 0, 10)


def test_what_was_there_before_lives_from_the_start_and_what_stays_to_the_end():
    packed = profile_guided(stream(100, 5, "-1", 6, initial=1))
    assert packed.offsets[0] == 0
    assert packed.offsets[1] == 100 and packed.offsets[2] == 100
    assert packed.footprint_bytes == 106


@given(st.lists(st.integers(1, 100), min_size=1, max_size=10))
def test_nested_lifetimes_stack_without_loss(sizes):
    events = stream(*sizes, *(f"-{k}" for k in reversed(range(len(sizes)))))
    assert profile_guided(events).footprint_bytes == sum(sizes)

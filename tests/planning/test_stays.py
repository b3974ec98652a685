from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import Swap
from memfit.planning.packing import NOBODY
from memfit.planning.stays import Stays, place_stays, stays_of_life, stays_of_recurring, swaps_by_storage


def test_a_life_without_absences_is_one_stay():
    assert stays_of_life((2, 20), []) == [(2, 20)]


def test_absences_are_taken_out_of_a_life():
    assert stays_of_life((2, 20), [(5, 9), (12, 15)]) == [(2, 5), (9, 12), (15, 20)]


def test_a_storage_that_recurs_stays_from_each_return_to_the_next_leave():
    assert stays_of_recurring([(5, 9)], 20) == [(9, 25)]
    assert stays_of_recurring([(5, 9), (12, 23)], 20) == [(9, 12), (23, 25)]


def test_stays_begin_within_the_iteration():
    stays = Stays.from_rows([(0, 9, 12, 64), (0, 23, 25, 64)], 20)
    assert (stays.lower.tolist(), stays.upper.tolist()) == ([9, 3], [12, 5])
    assert len(stays) == 2 and len(Stays.from_rows([], 20)) == 0


def test_swaps_are_listed_by_storage_in_the_order_in_which_it_leaves():
    swaps = [Swap(storage, 8, out_after, 0, 0, 0, False) for storage, out_after in ((1, 5), (0, 3), (1, 2))]
    assert swaps_by_storage(swaps) == {1: [2, 0], 0: [1]}


def test_iterations_in_a_row_are_placed_each():
    column = np.array([0])
    stays = Stays(column, column, np.array([3]), np.array([64]), period=2, iterations=2)
    placed = place_stays(stays, alignment=64, effort=0.1)
    assert placed.lifetimes.lower.tolist() == [0, 2] and placed.packing.footprint == 128


def test_a_stay_that_takes_over_lies_where_the_one_before_it_did():
    rows = [(0, 0, 4, 64), (1, 2, 8, 192), (2, 4, 6, 64), (3, 6, 9, 64)]
    stays = replace(Stays.from_rows(rows, 10), over=np.array([NOBODY, NOBODY, 0, 2]))
    placed = place_stays(stays, alignment=64, effort=0.1)
    assert len(set(placed.packing.offsets[[0, 2, 3]].tolist())) == 1
    assert placed.lifetimes.upper.tolist() == [4, 8, 6, 9]  # each of them ends when it ends


def test_stays_lie_around_what_is_taken():
    rows = [(0, 0, 4, 64), (1, 4, 6, 64), (2, 0, 9, 192)]
    stays = replace(Stays.from_rows(rows, 10), over=np.array([NOBODY, 0, NOBODY]))
    placed = place_stays(stays, alignment=64, effort=0.1, taken=[(64, 128), (320, 64)])
    assert placed.packing.offsets.tolist() == [0, 0, 384] and placed.packing.slots.tolist() == [1, 1, 1]
    assert placed.packing.footprint == 576 and len(placed.lifetimes) == 3


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 25), st.integers(1, 5)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(1, 3),
)
def test_no_stay_has_bytes_that_are_taken(rows, gaps, iterations):
    taken, end = [], 0
    for gap, size in gaps:
        taken.append((64 * (end + gap), 64 * size))
        end += gap + size
    table = [(number, lower, lower + life, 64 * size) for number, (lower, life, size) in enumerate(rows)]
    stays = replace(Stays.from_rows(table, 10), iterations=iterations)
    placed = place_stays(stays, alignment=64, effort=0.05, taken=taken)
    size = np.repeat(placed.lifetimes.size, placed.packing.slots)
    assert len(placed.packing.slots) == iterations * len(rows) and len(size) == len(placed.packing.offsets)
    for offset, length in taken:
        assert ((placed.packing.offsets >= offset + length) | (placed.packing.offsets + size <= offset)).all()


@st.composite
def chains(draw):
    """Stays in a period of 20, some of which begin where another of the same size ends, in its place."""
    rows, over = [], []
    for storage in range(draw(st.integers(1, 8))):
        begin, size = draw(st.integers(0, 15)), 64 * draw(st.integers(1, 4))
        for link in range(draw(st.integers(1, 3))):
            end = begin + draw(st.integers(1, 12))
            over.append(len(rows) - 1 if link else NOBODY)
            rows.append((storage, begin, end, size))
            begin = end
            if begin >= 20:
                break
    return rows, over


@given(chains(), st.integers(1, 3))
def test_no_two_stays_have_a_byte_at_one_time_and_heirs_have_the_same_ones(drawn, iterations):
    rows, over = drawn
    stays = replace(Stays.from_rows(rows, 20), over=np.array(over), iterations=iterations)
    placed = place_stays(stays, alignment=64, effort=0.05)
    slots, period = placed.packing.slots, 20 * iterations
    first = np.cumsum(slots) - slots
    taken = []
    for time in range(3):
        for row in range(len(slots)):
            begin, end = placed.lifetimes.lower[row] + time * period, placed.lifetimes.upper[row] + time * period
            offset = placed.packing.offsets[first[row] + time % slots[row]]
            taken.append((begin, end, offset, offset + placed.lifetimes.size[row]))
            giver = over[row % len(rows)]
            if giver != NOBODY:
                source = row - row % len(rows) + giver
                assert offset == placed.packing.offsets[first[source] + time % slots[source]]
    for i, (begin, end, low, high) in enumerate(taken):
        assert high <= placed.packing.footprint
        assert all(end <= b or e <= begin or high <= lo or hi <= low for b, e, lo, hi in taken[:i])

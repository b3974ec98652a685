import numpy as np

from memfit.ir import Swap
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

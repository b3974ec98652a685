"""Placing on a skyline: the tree and the lists of the native one against a list of heights."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit import _native
from memfit.planning.packing import Lifetimes
from planning.packing.instances import tables


def native(lifetimes, order):
    columns = {"lower": lifetimes.lower, "upper": lifetimes.upper, "size_bytes": lifetimes.size}
    return _native.skyline(**columns, order=np.array(order, dtype=np.int64)).tolist()


def lowest_line(height):
    """The first run of ticks at the least height."""
    left = right = int(np.argmin(height))
    while right < len(height) and height[right] == height[left]:
        right += 1
    return left, right


def by_heights(lifetimes, order):
    """The same rules, with a height for each tick."""
    lower, upper, size = (c.tolist() for c in (lifetimes.lower, lifetimes.upper, lifetimes.size))
    height = np.zeros(max(upper, default=0), dtype=np.int64)
    waiting, offsets = list(order), [0] * len(order)
    while waiting:
        left, right = lowest_line(height)
        fits = [row for row in waiting if left <= lower[row] and upper[row] <= right]
        if fits:
            waiting.remove(fits[0])
            offsets[fits[0]] = int(height[left])
            height[lower[fits[0]] : upper[fits[0]]] += size[fits[0]]
        else:
            height[left:right] = min(int(height[at]) for at in (left - 1, right) if 0 <= at < len(height))
    return offsets


@given(st.data())
def test_each_line_takes_the_first_of_the_order_that_lives_within_it(data):
    lifetimes = data.draw(tables(max_count=30))
    lifetimes.size[:] += 1
    order = data.draw(st.permutations(range(len(lifetimes))))
    assert native(lifetimes, order) == by_heights(lifetimes, order)


def test_what_is_lifted_over_is_lost():
    # Row 1 fills part of the ground; row 2 fits in no line until the rest has been lifted to the top of row 1.
    lifetimes = Lifetimes.from_rows([(0, 9, 10), (0, 4, 3), (2, 9, 5)])
    assert native(lifetimes, [0, 1, 2]) == [0, 10, 13]
    assert native(lifetimes, [1, 2, 0]) == [8, 0, 3]

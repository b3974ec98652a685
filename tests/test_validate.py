"""Each promise a plan can break is noticed, and described."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.validate import InvalidPlanError, Promise, check_placements, require_valid


def column(*values):
    return np.array(values, dtype=np.int64)


def violation(rows, **rules):
    """Check rows of (lower, upper, size, offset)."""
    lower, upper, size, offset = (column(*values) for values in zip(*rows, strict=True))
    rules = {"offset_bytes": offset, **rules}
    return check_placements(lower=lower, upper=upper, size_bytes=size, **rules)


GOOD = [(0, 4, 10, 0), (2, 6, 6, 10), (4, 8, 10, 0)]


def test_a_good_plan_has_no_violation():
    assert violation(GOOD, capacity_bytes=16, alignment=2, fixed_bytes=column(0, -1, 0)) is None
    require_valid(None)


def test_an_overlap_names_both_lifetimes_the_time_and_the_bytes():
    found = violation([(0, 4, 10, 0), (6, 9, 10, 0), (3, 6, 10, 5)])
    assert (found.promise, found.lifetimes, found.time, found.bytes) == (Promise.OVERLAP, (0, 2), 3, (5, 10))
    assert str(found) == "overlap: lifetimes 0 and 2 both hold bytes [5, 10) at time 3"
    with pytest.raises(InvalidPlanError, match="overlap") as error:
        require_valid(found)
    assert error.value.violation is found


BROKEN = [
    ([(3, 3, 1, 0)], {}, Promise.RANGE, "ends before"),
    ([(0, 3, -1, 0)], {}, Promise.RANGE, "negative size"),
    ([(0, 3, 1, -8)], {}, Promise.RANGE, "negative offset"),
    ([(9, 12, 1, 0)], {"period": 9}, Promise.RANGE, "outside the period"),
    ([(0, 3, 1, 6)], {"alignment": 4}, Promise.ALIGNMENT, "not a multiple of 4"),
    ([(0, 3, 5, 4)], {"alignment": 4, "capacity_bytes": 11}, Promise.CAPACITY, "ends at byte 12, 1 over"),
    ([(0, 3, 5, 4)], {"fixed_bytes": column(8)}, Promise.FIXED, "fixed at 8, but lies at 4"),
    ([(0, 7, 5, 0)], {"period": 3}, Promise.PERIOD, "needs 3 slots in turn, but has 1"),
    ([(0, 3, 5, 0)], {"slots": column(2), "offset_bytes": column(0, 8)}, Promise.PERIOD, "needs 1 slots"),
    ([(0, 3, 5, 0)], {"slots": column(0)}, Promise.SHAPE, "0 slots"),
    ([(0, 3, 5, 0)], {"offset_bytes": column(0, 8)}, Promise.SHAPE, "1 slots, but 2 offsets"),
    ([(0, 3, 5, 0)], {"fixed_bytes": column(0, 8)}, Promise.SHAPE, "1 and 2 rows"),
    ([(0, 1, 1, 0), (0, 1, 1, 1)], {"alignment": 1, "period": 1, "capacity_bytes": 1}, Promise.CAPACITY, "over"),
    ([(2, 5, 4, 0), (0, 1, 4, 0)], {"period": 3}, Promise.OVERLAP, "at time 0"),
    ([(1, 4, 4, 0), (2, 5, 4, 3)], {"period": 3}, Promise.OVERLAP, "bytes [3, 4)"),
    ([(0, 4, 9, 0), (1, 2, 1, 4)], {}, Promise.OVERLAP, "bytes [4, 5)"),
    ([(0, 4, 1, 4), (1, 2, 9, 0)], {}, Promise.OVERLAP, "bytes [4, 5)"),
    ([(0, 4, 2, 0), (0, 4, 2, 2)], {"alignment": 2, "fixed_bytes": column(-1, 0)}, Promise.FIXED, "lies at 2"),
    ([(0, 4, 1, 0), (0, 4, 1, 0)], {"alignment": 1}, Promise.OVERLAP, "bytes [0, 1)"),
]


@pytest.mark.parametrize(("rows", "rules", "promise", "says"), BROKEN)
def test_each_broken_promise_is_found(rows, rules, promise, says):
    found = violation(rows, **rules)
    assert found.promise is promise
    assert says in found.message


def test_instances_of_a_long_lifetime_may_not_share_a_slot():
    found = violation([(0, 5, 4, 0)], period=3, slots=column(2), offset_bytes=column(0, 2))
    assert (found.promise, found.lifetimes) == (Promise.OVERLAP, (0, 0))
    assert violation([(0, 5, 4, 0)], period=3, slots=column(2), offset_bytes=column(0, 4)) is None


ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 3), st.integers(0, 15)), min_size=1, max_size=12
)


@given(ROWS, st.one_of(st.none(), st.integers(1, 7)), st.sampled_from([0, 400]))
def test_overlaps_are_found_exactly_where_a_byte_is_held_twice(raw, period, few):
    rows = [(a % (period or 99), a % (period or 99) + min(n, period or 99), size, at) for a, n, size, at in raw]
    held = [
        {(t % (period or 99), byte) for t in range(lower, upper) for byte in range(at, at + size)}
        for lower, upper, size, at in rows
    ]
    twice = sum(map(len, held)) > len(set().union(*held))
    with mock.patch("memfit.validate._FEW", few):  # few pairs are compared one by one, more in a tree
        found = violation(rows, period=period)
    assert (found is not None) == twice
    if found:
        a, b = found.lifetimes
        assert {(found.time, byte) for byte in range(*found.bytes)} <= held[a] & held[b]


@pytest.mark.parametrize("wrong", [None, 17, 2400, 4999])
def test_an_overlap_is_found_among_thousands_alive_at_once(wrong):
    count = 5000
    order = np.random.default_rng(0).permutation(count)
    offset = order * 3
    if wrong is not None:
        offset[wrong] += 1
    rules = {"lower": np.arange(count), "upper": np.arange(count) + 4 * count, "offset_bytes": offset}
    found = check_placements(size_bytes=np.full(count, 3), **rules)
    if wrong is None or order[wrong] == count - 1:
        assert found is None
    else:
        assert wrong in found.lifetimes
        lo = int(offset[wrong]) + 2
        assert found.bytes == (lo, lo + 1)

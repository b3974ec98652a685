"""The table of addresses: played back iteration after iteration, no two allocations that are alive overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.planning.addresses import AddressPlan, Allocations, allocations_of, plan_addresses

ITERATIONS = 7


def allocations(rows: list[tuple[int, int]]) -> Allocations:
    """Return the allocations of (size, allocations it lives through) rows; 0: for good."""
    upper = [k + life if life else -1 for k, (_, life) in enumerate(rows)]
    return Allocations(np.array(upper), np.array([size for size, _ in rows]))


def play(rows: list[tuple[int, int]], plan: AddressPlan) -> list[tuple[int, int, int, int]]:
    """Return (begin, end, offset, size) of every allocation that gets an address, as the engine would give it."""
    first_slot = np.cumsum([0, *plan.slots])
    played = []
    for now in range(ITERATIONS * len(rows)):
        life = rows[now % len(rows)][1]
        period, ordinal = divmod(now, len(plan.size))
        if plan.slots[ordinal]:
            offset = plan.slot_offset[first_slot[ordinal] + period % plan.slots[ordinal]]
            played.append((now, now + life, offset, plan.size[ordinal]))
    return played


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 25)), min_size=1, max_size=8))
def test_a_played_back_plan_gives_no_byte_out_twice(rows):
    plan = plan_addresses(allocations(rows), alignment=64, effort=0.1)
    played = play(rows, plan)
    for i, (begin, end, offset, size) in enumerate(played):
        assert offset % 64 == 0 and offset + size <= plan.zone_bytes
        for other_begin, other_end, other_offset, other_size in played[:i]:
            if begin < other_end and other_begin < end:
                assert offset + size <= other_offset or other_offset + other_size <= offset
    assert all(size >= asked for size, (asked, _) in zip(plan.size, rows * plan.iterations, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 25)), min_size=1, max_size=8))
def test_every_end_of_a_lifetime_is_due_right_then(rows):
    plan = plan_addresses(allocations(rows), alignment=64, effort=0.0)
    period = len(plan.size)
    due = {
        (before, allocation): ago
        for before in range(period + 1)
        for allocation, ago in zip(
            plan.due_allocation[plan.due_begin[before] : plan.due_begin[before + 1]],
            plan.due_periods_ago[plan.due_begin[before] : plan.due_begin[before + 1]],
            strict=True,
        )
    }
    expected = {}
    for ordinal, (_, life) in enumerate(rows * plan.iterations):
        if life:
            expected[(ordinal + life) % period, ordinal] = (ordinal + life) // period
    assert due == expected


def test_a_batch_that_lives_until_the_next_has_come_is_not_reserved_twice():
    batch, activation = (100 * 64, 5), (1000 * 64, 2)
    plan = plan_addresses(allocations([batch, activation, activation, (64, 1)]), alignment=64, effort=1.0)
    assert plan.iterations == 2
    assert plan.zone_bytes == plan.lower_bound_bytes == 2100 * 64


def test_an_iteration_that_nothing_outlives_is_planned_by_itself():
    plan = plan_addresses(allocations([(64, 2), (64, 1)]), alignment=64, effort=1.0)
    assert plan.iterations == 1 and plan.zone_bytes == 128


def test_allocations_are_read_off_two_recorded_iterations():
    ticks = [(1, 64), (2, 128), (1, -64), (3, 64), (4, 128), (2, -128), (3, -64)]
    found = allocations_of(np.array(ticks), [0, 3, 7])
    assert found is not None
    assert found.upper.tolist() == [2, 4] and found.size.tolist() == [64, 128]
    assert allocations_of(np.array(ticks), [0, 4, 7]) is None

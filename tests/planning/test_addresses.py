"""The table of addresses: played back iteration after iteration, no two allocations that are alive overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.ir import Swap
from memfit.planning.addresses import AddressPlan, Takes, TwoIterations, plan_addresses, takes_of
from memfit.planning.packing import NOBODY

ITERATIONS = 7


def allocations(rows: list[tuple[int, int]]) -> Takes:
    """Return the allocations of (size, allocations it lives through) rows; 0: for good."""
    upper = [k + life if life else -1 for k, (_, life) in enumerate(rows)]
    return Takes(np.array(upper), np.array([size for size, _ in rows]))


def play(rows: list[tuple[int, int]], plan: AddressPlan) -> list[tuple[int, int, int, int]]:
    """Return (begin, end, offset, size) of every allocation that gets an address, as the engine would give it."""
    first_slot = np.cumsum([0, *plan.columns["slots"]])
    played = []
    for now in range(ITERATIONS * len(rows)):
        life = rows[now % len(rows)][1]
        period, ordinal = divmod(now, len(plan.columns["size"]))
        if plan.columns["slots"][ordinal]:
            offset = plan.columns["slot_offset"][first_slot[ordinal] + period % plan.columns["slots"][ordinal]]
            played.append((now, now + life, offset, plan.columns["size"][ordinal]))
    return played


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 25)), min_size=1, max_size=8))
def test_a_played_back_plan_gives_no_byte_out_twice(rows):
    plan = plan_addresses(allocations(rows), alignment=64, effort=0.1)
    played = play(rows, plan)
    for i, (begin, end, offset, size) in enumerate(played):
        assert offset % 64 == 0 and offset + size <= plan.zone_bytes
        for other_begin, other_end, other_offset, other_size in played[:i]:
            if begin < other_end and other_begin < end:
                assert offset + size <= other_offset or other_offset + other_size <= offset
    assert all(size >= asked for size, (asked, _) in zip(plan.columns["size"], rows * plan.iterations, strict=True))


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 25)), min_size=1, max_size=8))
def test_every_end_of_a_lifetime_is_due_right_then(rows):
    plan = plan_addresses(allocations(rows), alignment=64, effort=0.0)
    period = len(plan.columns["size"])
    due = {
        (before, allocation): ago
        for before in range(period + 1)
        for allocation, ago in zip(
            plan.columns["due_take"][plan.columns["due_begin"][before] : plan.columns["due_begin"][before + 1]],
            plan.columns["due_periods_ago"][plan.columns["due_begin"][before] : plan.columns["due_begin"][before + 1]],
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
    ticks = [(1, 64, 1), (2, 128, 1), (1, -64, 2), (3, 64, 3), (4, 128, 3), (2, -128, 4), (3, -64, 4)]
    takes = takes_of(TwoIterations.of(np.array(ticks), [0, 3, 7], [0, 2, 4]))
    assert takes.upper.tolist() == [2, 4] and takes.size.tolist() == [64, 128]
    assert takes.op.tolist() == [0, 0] and takes.ops == 2


def test_temporaries_are_what_an_op_frees_before_the_next_one_begins():
    """The first op frees its first block, the second one the other, and the next iteration the rest."""
    first = [(1, 64, 1), (2, 64, 1), (1, -64, 1), (3, 64, 2), (2, -64, 2)]
    ticks = [*first, (4, 64, 3), (5, 64, 3), (4, -64, 3), (3, -64, 3)]
    takes = takes_of(TwoIterations.of(np.array(ticks), [0, 5, 9], [0, 2, 4]))
    assert takes.temporary.tolist() == [True, False, False]
    assert plan_addresses(takes, alignment=64, effort=0.1).columns["temporary"][:3] == [1, 0, 0]


@pytest.mark.parametrize("ops", [2, 4, 8])
def test_an_iteration_of_another_kind_frees_what_the_first_one_left_as_far_on(ops):
    """Ops 0 and 2 allocate; the second block is freed halfway through the next iteration, of 2, 4 or 8 ops."""
    first = [(1, 64, 1), (2, 128, 3), (1, -64, 4)]
    other = [(3, 256, 4 + 1), (2, -128, 4 + ops // 2), (3, -256, 4 + ops)]
    found = TwoIterations.of(np.array(first + other), [0, 3, 6], [0, 4, 4 + ops])
    alike = [*first, (3, 64, 5), (2, -128, 6), (4, 128, 7), (3, -64, 8)]
    expected = TwoIterations.of(np.array(alike), [0, 3, 7], [0, 4, 8])
    assert (found.first_count, found.ops) == (expected.first_count, expected.ops) == (2, 4)
    assert found.size.tolist() == expected.size.tolist() and found.begun.tolist() == expected.begun.tolist()
    for name in ("upper", "size", "op"):
        assert getattr(takes_of(found), name).tolist() == getattr(takes_of(expected), name).tolist()
    assert found.block[found.size < 0].tolist()[:2] == [1, 2]
    assert set(found.block[found.size > 0].tolist()[2:]).isdisjoint({1, 2})


def test_a_block_that_takes_over_another_ones_place_has_its_address():
    """Each op allocates a block; the third is freed after the fourth was allocated, in whose place it lies."""
    ticks = [(1, 64, 1), (2, 192, 2), (3, 128, 3), (1, -64, 3), (4, 128, 4), (3, -128, 4), (2, -192, 4), (4, -128, 4)]
    twice = [*ticks, *((block + 10, size, begun + 4) for block, size, begun in ticks)]
    recorded = TwoIterations.of(np.array(twice), [0, 8, 16], [0, 4, 8])
    givers = {4: 3}
    takes = takes_of(recorded.freed_earlier(givers), givers=givers)
    assert takes.over.tolist() == [NOBODY, NOBODY, NOBODY, 2]
    assert takes.upper.tolist() == [3, 4, 3, 4] and takes_of(recorded).upper.tolist() == [3, 4, 4, 4]
    plan = plan_addresses(takes, alignment=64, effort=0.1)
    assert plan.columns["slot_offset"][2] == plan.columns["slot_offset"][3]
    assert plan.zone_bytes == plan.lower_bound_bytes == 384


@pytest.mark.parametrize("giver", [1, 2])
def test_of_two_places_that_are_free_then_it_is_the_givers(giver):
    ticks = [(1, 64, 1), (2, 64, 2), (3, 64, 3), (1, -64, 3), (2, -64, 3), (3, -64, 4)]
    twice = [*ticks, *((block + 10, size, begun + 4) for block, size, begun in ticks)]
    recorded = TwoIterations.of(np.array(twice), [0, 6, 12], [0, 4, 8])
    both = recorded.freed_earlier({3: 3 - giver}).freed_earlier({3: giver})
    offset = plan_addresses(takes_of(both, givers={3: giver}), alignment=64, effort=0.1).columns["slot_offset"]
    assert offset[2] == offset[giver - 1] != offset[2 - giver]


@st.composite
def swapped_iterations(draw):
    """Storages born in an iteration and dying in it or the next, and ones that recur; some are away."""
    ops = draw(st.integers(4, 12))
    lives, swaps = [], []
    for storage in range(draw(st.integers(1, 6))):
        recurs = draw(st.booleans())
        born = -1 if recurs else draw(st.integers(0, ops - 2))
        dies = ops if recurs else draw(st.integers(born + 1, ops + born))  # before this op begins
        size = 64 * draw(st.integers(1, 8))
        lives.append((born, dies, size))
        at = 0 if recurs else born
        for _ in range(draw(st.integers(0, 2))):
            if min(dies, ops) - at < 4:
                break
            cut = sorted(draw(st.sets(st.integers(at, min(dies, ops) - 1), min_size=4, max_size=4)))
            swaps.append(Swap(storage, size, *cut, False))
            at = cut[3]
        if recurs and draw(st.booleans()) and ops - at >= 2:
            first = min((s.out_after for s in swaps if s.storage == storage), default=ops - 1)
            leave = draw(st.integers(at + 1, ops - 1))
            swaps.append(Swap(storage, size, at, leave, ops, ops + first, True))
        if not recurs and at < ops and dies - at > 1 and draw(st.booleans()):
            leave = draw(st.integers(at + 1, dies - 1))
            swaps.append(Swap(storage, size, at, leave, dies, dies, dies >= ops, returns=False))
    return ops, lives, swaps


def recorded_ticks(ops: int, lives: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Two iterations of it as the engine records them; a storage's block id is its index, plus 100 an iteration."""
    rows, marks = [], [0]
    for iteration in range(2):
        for op in range(ops):
            begun = iteration * ops + op
            for block, (born, dies, size) in enumerate(lives):
                if dies % ops == op and born >= 0 and (dies != ops or iteration):
                    rows.append((block + 100 * (iteration - dies // ops), -size, begun))
            for block, (born, _, size) in enumerate(lives):
                if born == op:
                    rows.append((block + 100 * iteration, size, begun + 1))
        marks.append(len(rows))
    return rows, marks


@given(swapped_iterations())
def test_stays_of_swapped_storages_get_bytes_that_are_free_all_the_while(drawn):
    """Played back op by op, as the engine does: leaves, arrivals and allocations of an op, in this order."""
    ops, lives, swaps = drawn
    rows, marks = recorded_ticks(ops, lives)
    recorded = TwoIterations.of(np.array(rows, dtype=np.int64).reshape(-1, 3), marks, [0, ops, 2 * ops])
    takes = takes_of(recorded, swaps, range(len(lives)))
    assume(takes.count)
    plan = plan_addresses(takes, alignment=64, effort=0.0)
    first_slot = np.cumsum([0, *plan.columns["slots"]])
    held: dict[int, tuple[int, int]] = {}  # by storage

    def take(storage: int, now: int, swap: int) -> None:
        period, ordinal = divmod(now, len(plan.columns["size"]))
        assert plan.columns["swap"][ordinal] == swap + 1 and plan.columns["size"][ordinal] == lives[storage][2]
        offset = plan.columns["slot_offset"][first_slot[ordinal] + period % plan.columns["slots"][ordinal]]
        begin, end = offset, offset + lives[storage][2]
        assert all(end <= b or e <= begin for b, e in held.values())
        held[storage] = (begin, end)

    now = 0
    for iteration in range(3 * plan.iterations):
        for op in range(ops):
            for block, (born, dies, _) in enumerate(lives):
                if dies % ops == op and born >= 0:
                    held.pop(block, None)
            for swap in swaps:
                if swap.free_by % ops == op:
                    held.pop(swap.storage, None)
            assert plan.columns["op_begin"][op] == now - iteration * takes.count
            arriving = [i for i, s in enumerate(swaps) if s.in_start % ops == op and s.returns]
            for i in sorted(arriving, key=lambda i: (swaps[i].in_before - swaps[i].in_start, i)):
                take(swaps[i].storage, now, i)
                now += 1
            for block, (born, _, _) in enumerate(lives):
                if born == op:
                    take(block, now, -1)
                    now += 1
    assert takes.count * 3 * plan.iterations == now

"""Each promise broken once; and a brute force that walks every moment of three iterations."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from time import process_time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.ir import Recompute, Swap, Trace
from memfit.simulate import planned_bytes
from memfit.validate_plan import InvalidSwapsError, SwapPromise, check_plan, require_valid_plan
from plan_oracle import first_broken
from swap_builder import SIZES, plan_of, plans
from trace_builder import TraceBuilder, traces


def trace_of_six():
    """Storage 0 (10 bytes) recurs, used by ops 1 and 4; storage 1 (3 bytes) lives in ops 0 to 3."""
    builder = TraceBuilder()
    weight = builder.before(10)
    (x,) = builder.op(outputs=[3])
    builder.op(reads=[weight])
    builder.op(writes=[x])
    builder.op(reads=[x])
    builder.free(x)
    builder.op(reads=[weight])
    builder.op()
    return builder.build()


TRACE = trace_of_six()
GOOD = Swap(0, 10, 1, 2, 4, 4, False)
CYCLIC = Swap(0, 10, 4, 5, 7, 7, True)


def test_good_swaps_keep_every_promise():
    assert check_plan(TRACE, plan_of(TRACE, GOOD, CYCLIC, budget_bytes=13)) is None
    require_valid_plan(TRACE, plan_of(TRACE, GOOD))


BROKEN = [
    (replace(GOOD, storage=9), SwapPromise.STORAGE, "the trace does not have"),
    (replace(GOOD, size_bytes=9), SwapPromise.SIZE, "is of 9 bytes, its storage has 10"),
    (replace(GOOD, free_by=1), SwapPromise.ORDER, "(1, 1, 4, 4)"),
    (replace(GOOD, in_start=5), SwapPromise.ORDER, "(1, 2, 5, 4)"),
    (replace(GOOD, free_by=3, in_start=2), SwapPromise.ORDER, "(1, 3, 2, 4)"),
    (replace(GOOD, cyclic=True), SwapPromise.ORDER, "cyclic True"),
    (replace(CYCLIC, in_before=11), SwapPromise.ORDER, "(4, 5, 7, 11)"),
    (Swap(1, 3, 3, 4, 5, 5, False), SwapPromise.LIFETIME, "beyond its life [0, 4)"),
    (Swap(1, 3, 3, 4, 6, 6, True), SwapPromise.LIFETIME, "beyond its life"),
    (replace(GOOD, in_before=5), SwapPromise.USE, "op 4 uses storage 0"),
    (Swap(1, 3, 0, 3, 3, 3, False), SwapPromise.WRITE, "op 2 writes storage 1"),
    (replace(CYCLIC, in_before=8, in_start=8), SwapPromise.USE, "op 1 uses storage 0"),
]


@pytest.mark.parametrize(("swap", "promise", "says"), BROKEN)
def test_each_broken_promise_is_named(swap, promise, says):
    found = check_plan(TRACE, plan_of(TRACE, swap))
    assert found.promise is promise and says in found.message


def test_the_promises_of_all_swaps_together():
    assert check_plan(TRACE, plan_of(TRACE, GOOD, GOOD)).promise is SwapPromise.TWICE
    found = check_plan(TRACE, plan_of(TRACE, GOOD, budget_bytes=12))
    assert (found.promise, found.op) == (SwapPromise.BUDGET, 0)
    assert check_plan(TRACE, replace(plan_of(TRACE), op_count=5)).promise is SwapPromise.TRACE
    with pytest.raises(InvalidSwapsError, match="budget: op 0 holds 13 bytes, 1 over"):
        require_valid_plan(TRACE, plan_of(TRACE, budget_bytes=12))


def trace_with_a_late_end():
    """Storage 1 (5 bytes) is what the iteration before made and op 1 ends; storage 2, made by op 3, is its like."""
    builder = TraceBuilder()
    weight, old = builder.before(10), builder.before(5)
    builder.op(reads=[weight])
    builder.op(reads=[weight])
    builder.free(old)
    builder.op(reads=[weight])
    (new,) = builder.op(outputs=[5])
    builder.op(reads=[weight, new])
    for _ in range(2):
        builder.op(reads=[weight])
    return builder.build()


LATE = Swap(2, 5, 4, 5, 9, 9, True, returns=False)  # op 9 is op 2 of the next iteration


def test_what_the_next_iteration_frees_may_stay_away_until_then():
    trace = trace_with_a_late_end()
    assert check_plan(trace, plan_of(trace, LATE, budget_bytes=15)) is None
    found = check_plan(trace, plan_of(trace, LATE, budget_bytes=14))
    assert (found.promise, found.op) == (SwapPromise.BUDGET, 3)


def trace_that_allocates_after_a_free():
    """Storage 1 (5 bytes) is freed between ops 2 and 3, right before 7 bytes for which it makes room."""
    builder = TraceBuilder()
    weight = builder.before(10)
    (made,) = builder.op(outputs=[5])
    builder.op(reads=[made])
    builder.op(reads=[weight])
    builder.free(made)
    builder.alloc(7)
    builder.op(reads=[weight])
    return builder.build()


def test_what_is_allocated_after_a_free_finds_no_more_room_if_the_freed_storage_is_away():
    trace = trace_that_allocates_after_a_free()
    away = Swap(1, 5, 1, 2, 3, 3, False, returns=False)
    assert check_plan(trace, plan_of(trace, away, budget_bytes=17)) is None
    found = check_plan(trace, plan_of(trace, away, budget_bytes=16))
    assert (found.promise, found.op, "op 2 holds 17 bytes" in found.message) == (SwapPromise.BUDGET, 2, True)


def test_what_the_next_iteration_frees_is_the_like_of_one_storage_only():
    builder = TraceBuilder()
    old = builder.before(5)
    builder.op()
    builder.free(old)
    first, second = builder.op(outputs=[5, 5])
    builder.op(reads=[first, second])
    builder.op()
    trace = builder.build()
    swaps = [Swap(storage, 5, 2, 3, 5, 5, True, returns=False) for storage in (first, second)]
    assert check_plan(trace, plan_of(trace, swaps[0])) is check_plan(trace, plan_of(trace, swaps[1])) is None
    found = check_plan(trace, plan_of(trace, *swaps))
    assert (found.promise, found.swap) == (SwapPromise.END, 1)
    assert check_plan(trace, plan_of(trace, swaps[0], swaps[0])).promise is SwapPromise.END


@pytest.mark.parametrize(
    ("swap", "promise", "says"),
    [
        (replace(LATE, in_start=10, in_before=10), SwapPromise.END, "away until op 10, longer than it lives"),
        (replace(LATE, in_start=8), SwapPromise.ORDER, "(4, 5, 8, 9)"),
        (replace(LATE, out_after=3, free_by=4), SwapPromise.USE, "op 4 uses storage 2"),
        (replace(LATE, returns=True), SwapPromise.LIFETIME, "beyond its life"),
        (Swap(0, 10, 6, 7, 7, 7, True, returns=False), SwapPromise.LIFETIME, "beyond its life"),
        (replace(LATE, size_bytes=4), SwapPromise.SIZE, "is of 4 bytes"),
    ],
)
def test_what_does_not_return_is_freed_while_it_is_away(swap, promise, says):
    trace = trace_with_a_late_end()
    found = check_plan(trace, plan_of(trace, swap))
    assert found.promise is promise and says in found.message


def test_what_the_next_iteration_still_uses_has_to_return():
    builder = TraceBuilder()
    old = builder.before(5)
    builder.op(reads=[old])
    builder.free(old)
    (new,) = builder.op(outputs=[5])
    builder.op()
    trace = builder.build()
    found = check_plan(trace, plan_of(trace, Swap(new, 5, 1, 2, 4, 4, True, returns=False)))
    assert (found.promise, found.swap) == (SwapPromise.END, 0)


def test_what_does_not_return_has_left_before_the_next_iteration_makes_its_like():
    builder = TraceBuilder()
    old = builder.before(5)
    (new,) = builder.op(outputs=[5])
    builder.free(old)  # as `out = model(x)` does with the last iteration's
    for op in range(4):
        builder.op(reads=[new] * (op == 0))
    trace = builder.build()
    swap = Swap(new, 5, 1, 5, 6, 6, True, returns=False)
    assert check_plan(trace, plan_of(trace, swap, budget_bytes=5)) is None
    found = check_plan(trace, plan_of(trace, replace(swap, free_by=6)))
    assert found.promise is SwapPromise.END


@given(plans(), st.data())
def test_random_swaps_of_gaps_are_valid_exactly_within_what_they_hold(trace_and_plan, data):
    trace, plan = trace_and_plan
    held = int(planned_bytes(trace, plan.swaps).max())
    assert check_plan(trace, replace(plan, budget_bytes=held)) is None
    less = data.draw(st.integers(0, max(held - 1, 0)))
    assert held == 0 or check_plan(trace, replace(plan, budget_bytes=less)).promise is SwapPromise.BUDGET


@given(plans(), st.data())
def test_uses_are_found_exactly_where_an_absence_holds_one(trace_and_plan, data):
    trace, plan = trace_and_plan
    if not plan.swaps:
        return
    number = data.draw(st.integers(0, len(plan.swaps) - 1))
    shift = data.draw(st.integers(-2, 3))
    swap = plan.swaps[number]
    moved = replace(swap, in_before=swap.in_before + shift, in_start=max(swap.free_by, swap.in_start + min(shift, 0)))
    found = check_plan(trace, plan_of(trace, moved))
    count = len(trace.ops)
    used = {
        at
        for op in range(2 * count)
        for at in [op]
        if swap.storage in {*trace.ops[op % count].reads, *trace.ops[op % count].writes}
    }
    is_used = any(moved.free_by <= at < moved.in_before for at in used)
    if found is None:
        assert not is_used
    elif found.promise is SwapPromise.USE:
        assert is_used


@st.composite
def any_swaps(draw: st.DrawFn, trace: Trace) -> Swap:
    """A swap within the life of some storage, whatever uses it meanwhile."""
    count = len(trace.ops)
    lives = [s.alloc + 1 < s.free or trace.recurs(s) for s in trace.storages]
    storage = draw(st.sampled_from([number for number, is_long in enumerate(lives) if is_long]))
    life = trace.storages[storage]
    recurs = trace.recurs(life)
    out_after = draw(st.integers(life.alloc, count - 1 if recurs else life.free - 2))
    last = out_after + count if recurs else life.free - 1
    free_by, in_start, in_before = sorted(draw(st.integers(out_after + 1, last)) for _ in range(3))
    return Swap(storage, life.size_bytes, out_after, free_by, in_start, in_before, in_before >= count)


@pytest.mark.long
@given(traces(sizes=SIZES), st.data())
def test_the_first_broken_promise_is_the_one_that_a_walk_over_all_ops_finds(trace, data):
    assume(any(s.alloc + 1 < s.free or trace.recurs(s) for s in trace.storages))
    swaps = data.draw(st.lists(any_swaps(trace), max_size=5))
    plan = plan_of(trace, *swaps, budget_bytes=data.draw(st.integers(0, 150)))
    found = check_plan(trace, plan)
    assert (found and (found.promise, found.swap, found.op)) == first_broken(trace, plan)


def long_swaps(count: int):
    """`count` storages that recur, each used by two ops far from each other and away in between, both ways."""
    builder = TraceBuilder()
    weights = [builder.before(8) for _ in range(count)]
    for weight in weights * 2:
        builder.op(reads=[weight])
    trace = builder.build()
    away = [Swap(w, 8, w, w + 1, w + count, w + count, False) for w in weights]
    back = [Swap(w, 8, w + count, w + count + 1, w + 2 * count, w + 2 * count, True) for w in weights]
    return trace, plan_of(trace, *away, *back, budget_bytes=8)


def test_many_long_absences_take_time_and_memory_in_proportion():
    trace, plan = long_swaps(5000)
    tracemalloc.start()
    begin = process_time()
    try:
        assert check_plan(trace, plan) is None
        took, most = process_time() - begin, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 20 << 20, "not a row for each op of each absence"
    assert took < 5.0, "5,000 absences of 5,000 ops would take a minute if each op were looked at"


def test_a_plan_with_recomputes_is_checked_on_the_trace_in_which_they_are_carried_out():
    trace = TraceBuilder()
    (storage,) = trace.op(outputs=[8])
    trace.op()
    trace.op(reads=[storage])
    built = trace.build()
    plan = replace(plan_of(built), recomputes=(Recompute(storage, 0, 2, (0,)),))
    violation = check_plan(built, plan)
    assert violation is not None and violation.promise is SwapPromise.TRACE
    assert "1 recomputes are carried out" in violation.message


@pytest.mark.parametrize(("pinned_from", "is_kept"), [(None, True), (5, True), (4, False), (2, False)])
def test_a_swap_of_what_is_pinned_is_found_unless_it_is_back_before(pinned_from, is_kept):
    builder = TraceBuilder()
    (wave,) = builder.op(outputs=[10])
    for _ in range(3):
        builder.op()
    builder.op(reads=[wave])
    builder.op()
    trace = builder.build()
    storages = tuple(replace(storage, pinned_from=pinned_from) for storage in trace.storages)
    trace = replace(trace, storages=storages)
    found = check_plan(trace, plan_of(trace, Swap(wave, 10, 0, 1, 4, 4, False)))
    assert (found is None) == is_kept
    assert is_kept or (found.promise, found.swap) == (SwapPromise.PINNED, 0)

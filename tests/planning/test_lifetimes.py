from dataclasses import replace

import pytest
from hypothesis import given

from memfit.ir import Storage, Trace, align_up
from memfit.planning.lifetimes import (
    Gap,
    births,
    comfortable_budget,
    executable_budget,
    fixed_bytes,
    gaps,
    live_after,
    live_bytes,
    minimum_budget,
    operands,
    peak_live,
    peak_tick,
    pinned_bytes,
    small_bytes,
    working_sets,
)
from trace_builder import TraceBuilder, traces


def replayed(trace: Trace, alignment: int) -> list[set[int]]:
    """Oracle: the set of live storages before and after every event, by playing the events one by one."""
    events = {}
    for index, storage in enumerate(trace.storages):
        if storage.alloc_tick >= 0:
            events[storage.alloc_tick] = (True, index)
        if storage.free_tick < trace.ticks:
            events[storage.free_tick] = (False, index)
    live = {index for index, storage in enumerate(trace.storages) if storage.alloc_tick < 0}
    states = [set(live)]
    for tick in range(trace.ticks):
        if tick in events:
            is_alloc, index = events[tick]
            live = live | {index} if is_alloc else live - {index}
        states.append(live)
    return states


@given(traces())
def test_live_bytes_are_those_of_replaying_the_events(trace):
    for aligned in (False, True):
        alignment = trace.alignment if aligned else 1
        states = replayed(trace, alignment)
        sums = [sum(align_up(trace.storages[s].size_bytes, alignment) for s in state) for state in states]
        assert live_bytes(trace, aligned=aligned).tolist() == sums
        assert peak_live(trace, aligned=aligned)[0] == max(sums)
        assert peak_tick(trace, aligned=aligned) == sums.index(max(sums))
        assert [set(live_after(trace, ticks)) for ticks in range(trace.ticks + 1)] == states


@given(traces())
def test_the_peak_falls_in_the_last_op_begun_by_then(trace):
    begun = [i for i, op in enumerate(trace.ops) if op.first_tick < peak_tick(trace)]
    assert peak_live(trace)[1] == (begun[-1] if begun else 0)


def test_the_peak_sees_scratch_that_no_op_boundary_sees():
    builder = TraceBuilder(alignment=64)
    builder.before(10)
    builder.op(outputs=[20])
    builder.op(scratch=[1000])
    builder.op(outputs=[30])
    trace = builder.build()
    assert peak_live(trace) == (1030, 1)
    assert peak_live(trace, aligned=True) == (64 + 64 + 1024, 1)


def brute_working_set(trace: Trace, index: int, aligned: bool) -> int:
    op = trace.ops[index]
    total = op.workspace_bytes
    for number, storage in enumerate(trace.storages):
        accessed = number in op.reads or number in op.writes
        born_within = storage.alloc == index and storage.alloc_tick >= op.first_tick
        if accessed and not born_within:
            total += align_up(storage.size_bytes, trace.alignment) if aligned else storage.size_bytes
    return total


@given(traces())
def test_working_sets_and_the_minimum_budget(trace):
    for aligned in (False, True):
        expected = [brute_working_set(trace, op, aligned) for op in range(len(trace.ops))]
        assert working_sets(trace, aligned=aligned).tolist() == expected
    pinned = [brute_pinned(trace, op) for op in range(len(trace.ops))]
    assert pinned_bytes(trace).tolist() == pinned
    needed = [own + others for own, others in zip(expected, pinned, strict=True)]
    assert minimum_budget(trace) == (max(needed), needed.index(max(needed)))


def brute_pinned(trace: Trace, op: int) -> int:
    """Oracle: what is pinned for this op or an earlier one, was there before it, lives on, and is not used by it."""
    held = trace.pinned_bytes
    for number, storage in enumerate(trace.storages):
        since = 0 if trace.recurs(storage) else storage.pinned_from
        if storage.pinned_from is None or since > op or number in (*trace.ops[op].reads, *trace.ops[op].writes):
            continue
        if storage.alloc_tick < trace.ops[op].first_tick and storage.alloc <= op < storage.free:
            held += align_up(storage.size_bytes, trace.alignment)
    return held


def test_what_is_pinned_cannot_leave_from_then_until_it_dies():
    builder = TraceBuilder(alignment=64)
    weight = builder.before(128)
    (wave,) = builder.op(reads=[weight], outputs=[1000])
    builder.pin(wave, "train.py:7")
    builder.op(reads=[weight], outputs=[10])
    builder.op(reads=[wave])
    builder.op(reads=[weight])
    builder.free(wave)
    builder.op(reads=[weight])
    builder.pin(weight)
    trace = builder.build()
    assert pinned_bytes(trace).tolist() == [0, 1024, 128, 1024, 0]
    assert fixed_bytes(trace, 2000).tolist() == pinned_bytes(trace).tolist()
    movable = replace(trace, storages=tuple(replace(s, pinned_from=None) for s in trace.storages))
    assert not gaps(trace) and {gap.storage for gap in gaps(movable)} == {weight, wave}
    assert minimum_budget(trace) == (1024 + 128 + 64, 1)
    assert minimum_budget(trace)[0] <= executable_budget(trace)[0] <= comfortable_budget(trace)[0]


def test_a_working_set_counts_each_storage_once_and_outputs_as_workspace():
    builder = TraceBuilder(alignment=64, pinned_bytes=1000)
    weight, idle = builder.before(100), builder.before(7)
    between = builder.alloc(3)
    builder.op(reads=[weight, between], writes=[weight], outputs=[50], scratch=[1])
    trace = builder.build()
    assert operands(trace, 0) == (weight, between)
    assert idle not in operands(trace, 0)
    assert working_sets(trace).tolist() == [100 + 3 + 64 + 64]
    assert minimum_budget(trace) == (128 + 64 + 64 + 64 + 1000, 0)


def brute_gaps(trace: Trace) -> set[tuple[int, int, int, bool, bool]]:
    """Oracle: walk two iterations op by op and note each run of ops that leaves a storage alone."""
    count = len(trace.ops)
    found = {end for end in brute_ends(trace) if trace.storages[end[0]].pinned_from is None}
    for number, storage in enumerate(trace.storages):
        recurs = storage.alloc_tick == -1 and storage.free_tick == trace.ticks
        last, pinned = None, storage.pinned_from
        for step in range(2 * count if recurs else count):
            if pinned is not None and (recurs or step >= pinned):  # in the next iteration it is pinned all along
                break
            op = trace.ops[step % count]
            if number not in op.reads and number not in op.writes:
                continue
            if last is not None and step - last > 1 and last < count:
                found.add((number, last, step % count, step >= count, True))
            last = step
    return found


def brute_end(trace: Trace, storage: Storage) -> int:
    """Oracle: the first op without the storage, or the one before if something is allocated after it is freed there."""
    later = trace.ops[storage.free :]
    until = later[0].first_tick if later else trace.ticks
    again = any(storage.free_tick < other.alloc_tick < until for other in trace.storages)
    return max(storage.free - 1, 0) if again else storage.free


def brute_ends(trace: Trace) -> set[tuple[int, int, int, bool, bool]]:
    """Oracle: from the last use of what the iteration makes, walk on to where it is freed, or its like is."""
    count, found = len(trace.ops), set()
    used = [[op for op in range(count) if s in (*trace.ops[op].reads, *trace.ops[op].writes)]
            for s in range(len(trace.storages))]  # fmt: skip
    old = [s for s, life in enumerate(trace.storages) if life.alloc_tick < 0 and life.free_tick < trace.ticks]
    for number, life in enumerate(trace.storages):
        end = brute_end(trace, life) if life.free_tick < trace.ticks else None
        like = next((s for s in old if trace.storages[s].size_bytes == life.size_bytes), None)
        if life.alloc_tick < 0:
            continue
        if end is None and like is not None:
            old.remove(like)
            end = (
                None
                if used[like] or trace.storages[like].pinned_from is not None
                else count + brute_end(trace, trace.storages[like])
            )
        if end is not None and used[number] and 1 < end - used[number][-1] <= count:
            found.add((number, used[number][-1], end % count, end >= count, False))
    return found


@given(traces())
def test_gaps_are_all_spans_between_accesses(trace):
    result = gaps(trace)
    assert {(gap.storage, gap.after, gap.before, gap.cyclic, gap.returns) for gap in result} == brute_gaps(trace)
    weights = [gap.size_bytes * gap.duration_us for gap in result]
    assert weights == sorted(weights, reverse=True)
    for gap in result:
        end = gap.before + (len(trace.ops) if gap.cyclic else 0)
        between = [trace.ops[i % len(trace.ops)].duration_us for i in range(gap.after + 1, end)]
        assert gap.duration_us == pytest.approx(sum(between), rel=1e-9, abs=1e-6)
        assert gap.size_bytes == trace.storages[gap.storage].size_bytes


def test_a_parameter_has_a_gap_over_the_end_of_the_iteration():
    builder = TraceBuilder()
    weight, dying = builder.before(10), builder.before(10)
    builder.op(duration_us=1)
    builder.op(reads=[weight, dying], duration_us=2)
    builder.op(duration_us=4)
    builder.op(writes=[weight], duration_us=8)
    builder.op(duration_us=16)
    builder.free(dying)
    assert gaps(builder.build()) == [
        Gap(weight, 3, 1, 10, 17.0, cyclic=True),
        Gap(weight, 1, 3, 10, 4.0, cyclic=False),
    ]


def test_what_is_freed_after_more_than_an_iteration_has_no_gap_at_its_end():
    builder = TraceBuilder()
    old = builder.before(10)
    (new,) = builder.op(outputs=[10])
    builder.op()
    builder.op()
    builder.free(old)  # a window of the last two batches
    builder.op()
    assert gaps(builder.build()) == []
    builder.ops[3] = replace(builder.ops[3], reads=(new,))
    assert gaps(builder.build()) == [Gap(new, 3, 3, 10, 3.0, True, returns=False), Gap(new, 0, 3, 10, 2.0, False)]


def test_only_what_an_op_allocates_is_born_in_it():
    builder = TraceBuilder()
    before = builder.before(8)
    loose = builder.alloc(8)
    (first,) = builder.op(outputs=[8])
    builder.free(loose)
    between = builder.alloc(8)
    second, third = builder.op(outputs=[8, 8])
    after = builder.alloc(8)
    assert births(builder.build()) == {first: 0, second: 1, third: 1}
    assert {before, loose, between, after}.isdisjoint({first, second, third})


def test_what_is_pinned_not_yet_used_or_small_counts_where_it_stays():
    builder = TraceBuilder(alignment=64, pinned_bytes=1000)
    small = builder.before(100)
    made = builder.alloc(5000)
    (left,) = builder.op("aten::empty.memory_format", outputs=[300])
    builder.op(outputs=[70_000])
    builder.op(reads=[made, left, small])
    trace = builder.build()
    assert fixed_bytes(trace).tolist() == [1000 + 5056, 1000 + 5056 + 320, 1000]
    assert fixed_bytes(trace, above_bytes=300).tolist() == [1000 + 5056, 1000 + 5056, 1000]
    assert small_bytes(trace, up_to_bytes=300).tolist() == [128, 128 + 320, 0]
    assert comfortable_budget(trace) == (70_016 + 1000 + 5056 + 320 + 128, 1)


@pytest.mark.parametrize("allocates", [False, True])
def test_a_storage_may_not_be_away_in_the_op_that_allocates_again_once_it_is_freed(allocates):
    builder = TraceBuilder()
    (made,) = builder.op(outputs=[5])
    for _ in range(3):
        builder.op()
    builder.free(made)
    if allocates:
        builder.alloc(7)
    builder.op()
    (gap,) = gaps(builder.build())
    assert (gap.after, gap.before, gap.returns) == (0, 3 if allocates else 4, False)

"""Iterations with remakings in them: what they allocate and free, and how the engine finds what is dropped."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.ir import Phase, Recompute, Trace, Transformed
from memfit.planning.addresses import TwoIterations, plan_addresses, takes_of
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import live_bytes
from memfit.running.planned.carried_out import CarriedOut, carried_out
from memfit.running.planned.columns import remake_columns, swap_columns
from memfit.running.planned.recorded import Recorded
from trace_builder import TraceBuilder, traces

SIZES = st.integers(1, 40)


def events(trace: Trace) -> list[tuple[int, int, int]]:
    """Return the trace's allocations and frees in order: the storage, its bytes (negative: freed), the ops begun."""
    found = {}
    for index, storage in enumerate(trace.storages):
        if not storage.born_before:
            found[storage.alloc_tick] = index, storage.size_bytes
        if not trace.outlives(storage):
            found[storage.free_tick] = index, -storage.size_bytes
    starts = [op.first_tick for op in trace.ops]
    return [(*found[tick], int(np.searchsorted(starts, tick, side="right"))) for tick in sorted(found)]


def recorded(trace: Trace) -> Recorded:
    """Return two iterations of the trace; a block of the second is numbered after those of the first."""
    count, ops = len(trace.storages), len(trace.ops)
    first = events(trace)
    second = [(s + count, size, begun + ops) for s, size, begun in first if not trace.storages[s].born_before]
    block, size, begun = np.array([*first, *second], dtype=np.int64).reshape(-1, 3).T
    allocations = sum(bytes_ > 0 for _, bytes_, _ in first)
    return Recorded(trace, list(range(count)), TwoIterations(block, size, begun, allocations, ops))


def chosen(trace: Trace, data: st.DataObject) -> tuple[list[Recompute], Transformed]:
    found = [gap for gap in candidates(trace, ANY_GAP) if not gap.cyclic]
    drops, passing = (data.draw(st.lists(st.sampled_from(found), unique=True)) if found else [] for _ in range(2))
    values = Values.of(trace)
    recomputes = list(arrange(values, drops, passing))
    return recomputes, with_recomputes(values, recomputes)


def bytes_at_ops(iteration: CarriedOut, number: int) -> list[int]:
    """Return what the allocations and frees of an iteration come to before each of its ops, and at its end."""
    stream, ops = iteration.recorded.iterations, len(iteration.recorded.trace.ops)
    own = np.isin(stream.block, iteration.recorded.blocks) == (number == 0)
    at = stream.begun[own] - number * ops
    return [int(stream.size[own][at <= op].sum()) for op in range(ops + 1)]


def expected_at_ops(trace: Trace, counted: list[int]) -> list[int]:
    """Return the same of the trace; `counted` are the storages whose frees count."""
    rows = [row for row in events(trace) if row[0] in counted]
    return [sum(size for _, size, begun in rows if begun <= op) for op in range(len(trace.ops) + 1)]


@given(traces(max_ops=14, sizes=SIZES), st.data())
def test_the_allocations_and_frees_are_those_of_the_trace_with_remakings_at_every_op(trace, data):
    trace = corrected(trace)
    recomputes, made = chosen(trace, data)
    iteration = carried_out(recorded(trace), made, recomputes)
    everything = list(range(len(made.trace.storages)))
    born = [s for s in everything if not made.trace.storages[s].born_before]
    first = bytes_at_ops(iteration, 0)
    assert first == expected_at_ops(made.trace, everything)
    live = live_bytes(made.trace)
    assert [held - first[0] for held in first[:-1]] == [
        int(live[op.first_tick] - live[made.trace.ops[0].first_tick]) for op in made.trace.ops
    ]
    assert bytes_at_ops(iteration, 1) == expected_at_ops(made.trace, born)


@given(traces(max_ops=14, sizes=SIZES), st.data())
def test_nothing_is_freed_that_is_not_there_and_each_stay_is_a_block_of_its_own(trace, data):
    trace = corrected(trace)
    recomputes, made = chosen(trace, data)
    iteration = carried_out(recorded(trace), made, recomputes)
    stream = iteration.recorded.iterations
    assert len(set(iteration.recorded.blocks)) == len(made.trace.storages)
    held = {s: one.size_bytes for s, one in enumerate(trace.storages) if one.born_before}
    for block, size in zip(stream.block.tolist(), stream.size.tolist(), strict=True):
        if size > 0:
            assert block not in held
            held[block] = size
        else:
            assert held.pop(block) == -size
    repeats = (_first_time(made, op) if again else -1 for op, again in enumerate(made.runs_again))
    assert iteration.repeats == tuple(repeats)


def _first_time(made: Transformed, op: int) -> int:
    """Return where in the new iteration the program's own run of an op is."""
    return next(at for at, one in enumerate(made.op_of) if one == made.op_of[op] and not made.runs_again[at])


@given(traces(max_ops=14, sizes=SIZES, alignments=st.just(1)), st.data())
def test_the_columns_name_the_storages_and_takes_of_each_drop(trace, data):
    trace = corrected(trace)
    assume(not all(storage.born_before for storage in trace.storages))  # it would not be planned
    recomputes, made = chosen(trace, data)
    iteration = carried_out(recorded(trace), made, recomputes)
    stream, blocks = iteration.recorded.iterations, iteration.recorded.blocks
    addresses = plan_addresses(takes_of(stream, (), blocks), alignment=1, effort=0.0)
    swaps = swap_columns(iteration, (), addresses, lambda name, with_grad: len(name))
    remakes = remake_columns(iteration, (), addresses)
    bound = _as_the_engine_binds(stream)
    takes = {block: take for take, block in enumerate(bound.values())}
    for row, drop in enumerate(iteration.drops):
        storage = remakes["storage"][row]
        assert swaps["bytes"][storage] == made.trace.storages[drop.storage].size_bytes
        if made.trace.storages[drop.storage].born_before:
            assert swaps["block"][storage] == blocks[drop.storage]
        else:
            assert bound[swaps["again"][storage], swaps["ordinal"][storage]] == blocks[drop.storage]
        if drop.back is None:
            assert remakes["take"][row] == 0
        else:
            assert remakes["take"][row] == takes[blocks[drop.back]] + 1
            assert addresses.columns["again"][remakes["take"][row] - 1] > 0
    lasting = {drop.original for drop in iteration.drops if trace.outlives(trace.storages[drop.original])}
    ordinals = {ordinal: block for (again, ordinal), block in bound.items() if not again}
    assert {ordinals[ordinal] for ordinal in remakes["carried"]} == lasting
    last = {ordinals[o]: take for o, take in zip(remakes["carried"], remakes["last_take"], strict=True)}
    assert last == {original: takes[blocks[iteration.last[original]]] for original in lasting}


def _as_the_engine_binds(stream: TwoIterations) -> dict[tuple[int, int], int]:
    """Return the blocks of the first iteration by what the engine knows them by: the op that runs again, a number."""
    counts: Counter[int] = Counter()
    found = {}
    for block, size, again in zip(stream.block.tolist(), stream.size.tolist(), stream.again.tolist(), strict=True):
        if size > 0 and len(found) < stream.first_count:
            found[again, counts[again]] = block
            counts[again] += 1
    return found


def chain() -> tuple[TraceBuilder, int, int]:
    """Two ops, the second of which reads what the first made; returns their outputs."""
    builder = TraceBuilder()
    weight = builder.before(8)
    (between,) = builder.op("aten::mm", reads=[weight], outputs=[32])
    (saved,) = builder.op("aten::mm", reads=[between, weight], outputs=[64])
    return builder, between, saved


def dropping(trace: Trace, storage: int) -> CarriedOut:
    values = Values.of(trace)
    (gap,) = (gap for gap in candidates(trace, ANY_GAP) if gap.storage == storage)
    recomputes = list(arrange(values, [gap]))
    assert recomputes
    return carried_out(recorded(trace), with_recomputes(values, recomputes), recomputes)


def test_a_storage_that_dies_and_is_made_on_the_way_to_another_is_freed_in_the_remaking():
    builder, between, saved = chain()
    builder.free(between)
    builder.op("aten::mm", reads=[0], outputs=[8])
    builder.op("aten::sum", reads=[saved], phase=Phase.BACKWARD)
    builder.free(saved)
    iteration = dropping(builder.build(), saved)
    (drop,) = iteration.drops
    rows = list(zip(*(column.tolist() for column in _first(iteration)), strict=True))
    blocks = iteration.recorded.blocks
    (on_the_way,) = {block for block, *_ in rows} - {between, saved, saved + 1, blocks[drop.back]}
    # The mm before the remaking, the two that run again (ops 3 and 4), and what the program frees at last.
    assert [(block, size) for block, size, begun in rows if begun > 3] == [
        (on_the_way, 32), (blocks[drop.back], 64), (on_the_way, -32), (blocks[drop.back], -64)]  # fmt: skip
    assert iteration.last[saved] == drop.back and blocks[iteration.last[between]] == between


def _first(iteration: CarriedOut) -> list[np.ndarray]:
    stream, ops = iteration.recorded.iterations, len(iteration.recorded.trace.ops)
    own = stream.begun <= ops
    return [stream.block[own], stream.size[own], stream.begun[own]]


def test_a_storage_that_outlives_the_iteration_lies_at_its_end_where_its_last_stay_was():
    builder, between, saved = chain()
    builder.free(between)
    builder.op("aten::mm", reads=[0], outputs=[8])
    builder.op("aten::sum", reads=[saved], phase=Phase.BACKWARD)
    iteration = dropping(builder.build(), saved)
    (drop,) = iteration.drops
    addresses = plan_addresses(takes_of(iteration.recorded.iterations), alignment=1, effort=0.0)
    remakes = remake_columns(iteration, (), addresses)
    assert remakes["carried"] == [1], "the second of the program's own allocations"
    assert remakes["last_take"] == [4], "after three of the program's and one on the way"
    assert remakes["take"] == [remakes["last_take"][0] + 1], "0 is for none"
    assert iteration.last[saved] == drop.back

"""Faults, bytes and time of ops in a window: closed forms, an oracle, and what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.machine import MANAGED, WINDOW, Faults
from memfit.planning.lifetimes import births
from memfit.planning.paging import Leaves, Pager, expected_chunks
from memfit.planning.paging.classes import scratch, touches
from memfit.planning.paging.layout import ROWS_CHUNK_BYTES, events, window_layout
from planning.paging.pages import LINK, MIB, Oracle, chunks_of, one_op
from trace_builder import TraceBuilder, traces

CHUNK = 4
RULES = st.sampled_from(["LEAST_RECENT", "OLDEST", "NEWEST"])
WINDOWS = st.integers(1, 12) | st.lists(st.integers(1, 12), min_size=12, max_size=12)


def bytes_of(trace: Trace, faults: Faults, window: int, leaves: Leaves, iterations: int = 1, seed: int = 0):
    pager = Pager.of_window(trace, faults, range(len(trace.storages)), iterations)
    found = pager.run(LINK, window, leaves, seed=seed)
    return int(found.bytes_in.sum()), int(found.bytes_out.sum()), int(found.faults.sum())


@given(st.integers(2, 60), st.integers(1, 59), st.integers(1, 6), st.sampled_from([Leaves.LEAST_RECENT, Leaves.OLDEST]))
def test_sweeps_of_more_than_the_window_move_all_of_it_each_time(size, window, sweeps, leaves):
    moved, _, faults = bytes_of(one_op("mm", [512 * size]), chunks_of(512, sweeps=sweeps), 512 * window, leaves)
    times = sweeps if window < size else 1
    assert (moved, faults) == (512 * size * times, size * times)


@given(st.integers(2, 60), st.integers(9, 59), st.integers(1, 6))
def test_what_came_in_first_stays_if_the_newest_but_eight_leaves(size, window, sweeps):
    moved, *_ = bytes_of(one_op("mm", [512 * size]), chunks_of(512, sweeps=sweeps), 512 * window, Leaves.NEWEST)
    again = size - window + 8 if window < size else 0
    assert moved == 512 * (size + (sweeps - 1) * again)


@given(st.integers(20, 60), st.integers(10, 19), st.integers(2, 6))
def test_what_a_plan_knows_is_at_least_as_good_as_the_newest_but_eight(size, window, sweeps):
    trace, faults = one_op("mm", [512 * size]), chunks_of(512, sweeps=sweeps)
    planned, *_ = bytes_of(trace, faults, 512 * window, Leaves.USED_LAST)
    assert planned <= bytes_of(trace, faults, 512 * window, Leaves.NEWEST)[0]
    assert planned >= 512 * (size + (sweeps - 1) * (size - window))  # no rule does better


@given(traces(sizes=st.integers(1, 40), alignments=st.just(CHUNK), max_ops=12), WINDOWS, RULES, st.booleans())
def test_the_simulation_equals_one_chunk_by_chunk(trace, windows, rule, keeps_copies):
    """Windows are one for all ops, or one for each, of so many chunks."""
    faults = chunks_of(CHUNK, keeps_copies=keeps_copies, sweeps=3)
    pager = Pager.of_window(trace, faults, range(len(trace.storages)), 2)
    by_op = np.full(len(trace.ops), windows) if isinstance(windows, int) else np.array(windows[: len(trace.ops)])
    found = pager.run(LINK, CHUNK * windows if isinstance(windows, int) else CHUNK * by_op, Leaves[rule])
    oracle = Oracle(rule, keeps_copies=keeps_copies)
    first = played(oracle, trace, pager, 0, by_op)
    second = played(oracle, trace, pager, 1, by_op)
    assert (found.used_bytes <= CHUNK * by_op).all()
    assert found.faults.tolist() == [row[0] for row in second]
    assert found.bytes_in.tolist() == [CHUNK * row[1] for row in second]
    assert found.bytes_out.tolist() == [CHUNK * row[2] for row in second]
    assert len(first) == len(trace.ops)


def played(oracle: Oracle, trace: Trace, pager: Pager, iteration: int, windows) -> list[tuple[int, int, int]]:
    """Play one iteration, each op's touches side by side; return each op's faults and chunks in and out."""
    born, own = births(trace), scratch(trace)
    if iteration == 0:
        for s, storage in enumerate(trace.storages):
            if storage.born_before and storage.free > 0:
                oracle.copies |= set(range(*pager.range_of(0, s)))
    freed = [event for event in sorted(events(trace, range(len(trace.storages)))) if not event.is_alloc]
    if iteration > 0:
        drop(oracle, pager, iteration - 1, [e for e in freed if e.op == len(trace.ops)])
        drop(oracle, pager, iteration, [e for e in freed if e.op == 0])
    rows = []
    for op in range(len(trace.ops)):
        before = (oracle.faults, oracle.chunks_in, oracle.chunks_out)
        oracle.allow(int(windows[op]))
        its = [(pager.range_of(iteration, t.storage), 3 if t.sweeps is None else t.sweeps, t.is_write)
               for t in touches(trace, op, born)]  # fmt: skip
        its += [(pager.range_of(iteration, s), 1, True) for s in own.get(op, ())]
        for round_ in range(max((sweeps for _, sweeps, _ in its), default=0)):
            its_now = [(span, writes) for span, sweeps, writes in its if sweeps > round_]
            steps = max(last - first for (first, last), _ in its_now)
            for step in range(steps):
                for (first, last), writes in its_now:
                    n = last - first
                    for chunk in range(first + n * step // steps, first + n * (step + 1) // steps):
                        oracle.touch(chunk, writes=writes)
        after = (oracle.faults, oracle.chunks_in, oracle.chunks_out)
        rows.append(tuple(b - a for a, b in zip(before, after, strict=True)))
        if op + 1 < len(trace.ops):
            drop(oracle, pager, iteration, [e for e in freed if e.op == op + 1])
    return rows


def drop(oracle: Oracle, pager: Pager, iteration: int, freed) -> None:
    for event in freed:
        for chunk in range(*pager.range_of(iteration, event.storage)):
            oracle.drop(chunk)


@given(traces(sizes=st.integers(1, 40), alignments=st.just(CHUNK), writes=False), st.integers(2, 12))
def test_no_rule_misses_less_than_the_one_that_knows_the_plan(trace, capacity):
    """Belady's theorem, for ops that touch each chunk once."""
    streams = replace(trace, ops=tuple(replace(op, name="aten::add") for op in trace.ops))
    pager = Pager.of_window(streams, chunks_of(CHUNK), range(len(trace.storages)), 1)
    faults = {rule: int(pager.run(LINK, CHUNK * capacity, rule).faults.sum()) for rule in Leaves}
    if all(len({*op.reads, *op.writes}) <= 1 for op in streams.ops):  # the uses of chunks then have one order
        assert faults[Leaves.USED_LAST] == min(faults.values())


@given(traces(sizes=st.integers(1, 40), alignments=st.just(CHUNK)), st.integers(1, 12), st.sampled_from(list(Leaves)),
       st.sampled_from([(4, 4, 1), (4, 16, 2)]), st.booleans())  # fmt: skip
def test_the_window_is_never_exceeded_and_ops_take_their_time(trace, capacity, rule, grain, fresh_faults):
    chunk, block, group = grain
    faults = Faults(0.5, chunk, block, group, fresh_faults=fresh_faults)
    pager = Pager.of_window(trace, faults, range(len(trace.storages)), 2)
    found = pager.run(LINK, CHUNK * capacity, rule)
    assert found.used_bytes.max() <= CHUNK * capacity
    compute_us = np.array([op.duration_us for op in trace.ops])
    copies_us = found.bytes_in / 2000 + found.bytes_out / 1000
    expected = np.maximum(compute_us, copies_us) + -(-found.faults // group) * 0.5
    assert found.op_us == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found.iteration_us == pytest.approx(expected.sum(), rel=1e-6, abs=1e-6)


def test_a_window_smaller_than_a_chunk_is_refused_with_what_it_needs():
    pager = Pager.of_window(one_op("add", [4096]), chunks_of(1024), [0], 1)
    with pytest.raises(BudgetError) as error:
        pager.run(LINK, 1023)
    assert error.value.required_bytes == 1024
    assert pager.run(LINK, 1024).faults.tolist() == [4]


# Measured on the CPU, with a pager by userfaultfd whose oldest chunk leaves: MiB in and out of one op on what had left.
MEASURED = [
    ("aten::add.out", [128, 128, 128], [2], 128, 384, 127),
    ("aten::_softmax.out", [128, 128], [1], 128, 256, 142),
    ("aten::_fused_adam_", [64, 64, 64, 64], [0, 2, 3], 128, 256, 189),
    ("aten::sum0", [128], [], 48, 2048, 0),  # sums over rows sweep 16 times
    ("aten::native_layer_norm", [128], [], 48, 128, 0),
    ("aten::native_batch_norm", [128], [], 48, 8321, 0),  # once for each of 64 channels
]


@pytest.mark.parametrize(("name", "sizes", "writes", "window", "into", "out"), MEASURED)
def test_what_was_measured_is_predicted(name, sizes, writes, window, into, out):
    sweeps = {"aten::sum0": 16, "aten::native_batch_norm": 65}.get(name, 1)
    trace = one_op(name, [MIB * size for size in sizes], writes)
    faults = replace(WINDOW, sweeps=sweeps)
    bytes_in, bytes_out, _ = bytes_of(trace, faults, MIB * window, Leaves.OLDEST, iterations=3)
    assert bytes_in == pytest.approx(MIB * into, rel=0.05)
    assert bytes_out == pytest.approx(MIB * out, rel=0.12)  # the measured ones begin with what was filled before


def rows_trace(table: int, draws: int, row: int, name: str = "aten::embedding") -> Trace:
    builder = TraceBuilder(alignment=512)
    weight, indices = builder.before(table), builder.before(8 * draws)
    out = builder.before(draws * row)
    builder.op(name, reads=[weight, indices], writes=[out])
    return builder.build()


@pytest.mark.parametrize(("chunk_kib", "window", "measured"), [(1024, 128, 1550), (64, 128, 97.2), (16, 128, 24.1)])
def test_rows_of_an_embedding_come_in_as_measured(chunk_kib, window, measured):
    """2,048 random rows of 4 KiB out of 512 MiB, with the window full of others."""
    trace, faults = rows_trace(512 * MIB, 2048, 4096), chunks_of(chunk_kib << 10)
    pager = Pager(trace, faults, window_layout(trace, faults, [0], (), 8))  # chunks of the size that is asked for
    found = pager.run(LINK, window * MIB, Leaves.OLDEST)
    assert found.bytes_in.sum() / MIB == pytest.approx(measured, rel=0.05)


@given(st.integers(50, 400), st.integers(1, 2000))
def test_as_many_chunks_come_in_as_are_expected_of_random_rows(chunks, draws):
    trace, faults = rows_trace(chunks << 10, draws, 512), chunks_of(1 << 10)
    pager = Pager.of_window(trace, faults, [0], 1)
    found = [int(pager.run(LINK, chunks << 10, seed=seed).faults.sum()) for seed in range(30)]
    expected = expected_chunks(chunks, draws)
    assert np.mean(found) == pytest.approx(expected, rel=0.03, abs=1.5)


def test_the_chunks_of_what_is_read_by_rows_are_small():
    pager = Pager.of_window(rows_trace(4 * MIB, 16, 512), chunks_of(MIB), [0], 1)
    assert set(pager.layout.size_bytes.tolist()) == {ROWS_CHUNK_BYTES}
    assert int(pager.run(LINK, 4 * MIB).bytes_in.sum()) <= 16 * ROWS_CHUNK_BYTES


def test_an_output_is_never_read_and_a_freed_one_never_written():
    builder = TraceBuilder(alignment=512)
    x = builder.before(8 << 10)
    (y,) = builder.op("aten::relu", reads=[x], outputs=[8 << 10])
    (z,) = builder.op("aten::relu", reads=[y], outputs=[8 << 10])
    builder.free(y)
    builder.op("aten::sin", reads=[z])
    builder.free(z)
    trace = builder.build()
    into, out, _ = bytes_of(trace, chunks_of(1 << 10), 24 << 10, Leaves.LEAST_RECENT, 2)
    assert (into, out) == (0, 0)  # all fits
    into, out, _ = bytes_of(trace, chunks_of(1 << 10), 16 << 10, Leaves.LEAST_RECENT, 2)
    assert (into, out) == (8 << 10, 0)  # x comes in; nothing of it, y or z is ever copied out


def test_a_written_chunk_is_copied_out_once_each_time_it_leaves():
    builder = TraceBuilder(alignment=512)
    a, b = builder.before(8 << 10), builder.before(8 << 10)
    builder.op("aten::add_", reads=[a], writes=[a])
    builder.op("aten::add_", reads=[a], writes=[a])
    builder.op("aten::sin", reads=[b])
    into, out, _ = bytes_of(builder.build(), chunks_of(1 << 10), 8 << 10, Leaves.LEAST_RECENT, 2)
    assert (into, out) == (16 << 10, 8 << 10)


def test_what_keeps_no_copy_is_copied_out_though_nobody_wrote_to_it():
    trace = one_op("aten::add", [8 << 10, 8 << 10])
    assert bytes_of(trace, chunks_of(1 << 10), 4 << 10, Leaves.LEAST_RECENT, 2)[1] == 0
    assert bytes_of(trace, chunks_of(1 << 10, keeps_copies=False), 4 << 10, Leaves.LEAST_RECENT, 2)[1] == 16 << 10


def fetching(**more):
    """Two ops of 100 us on 100 KB each; the link brings 1,000 bytes in 0.5 us."""
    builder = TraceBuilder(alignment=1)
    a, b = builder.before(100_000), builder.before(100_000)
    builder.op("aten::sin", reads=[a], duration_us=100.0)
    builder.op("aten::cos", reads=[b], duration_us=100.0)
    pager = Pager.of_window(builder.build(), chunks_of(1000, fault_us=1.0), [a, b], 1)
    fetches = [(0, *pager.range_of(0, b), 1)]
    return pager.run(LINK, 200_000, fetches=fetches if more.pop("ahead") else (), **more)


def test_what_is_fetched_beside_an_op_is_no_fault_of_the_next():
    alone, ahead = fetching(ahead=False), fetching(ahead=True)
    assert alone.faults.tolist() == [100, 100] and ahead.faults.tolist() == [100, 0]
    assert alone.op_us == pytest.approx([200, 200], rel=1e-4)
    assert ahead.op_us == pytest.approx([200, 100], rel=1e-4)
    assert ahead.bytes_in.sum() == 200_000


def test_an_op_waits_for_what_is_still_on_its_way():
    builder = TraceBuilder(alignment=1)
    a = builder.before(100_000)
    builder.op("aten::sin", duration_us=10.0)
    builder.op("aten::cos", reads=[a], duration_us=5.0)
    pager = Pager.of_window(builder.build(), chunks_of(1000, fault_us=1.0), [a], 1)
    found = pager.run(LINK, 200_000, fetches=[(0, *pager.range_of(0, a), 1)])
    assert found.op_us == pytest.approx([10, 40], rel=1e-4) and found.faults.sum() == 0


def test_a_fetch_does_not_take_the_place_of_what_is_fetched_for_a_sooner_op():
    builder = TraceBuilder(alignment=1)
    a, b = builder.before(50_000), builder.before(60_000)
    for name, storage in (("aten::sin", None), ("aten::cos", a), ("aten::tan", b)):
        builder.op(name, reads=[] if storage is None else [storage], duration_us=100.0)
    pager = Pager.of_window(builder.build(), chunks_of(1000), [a, b], 1)
    spans = [pager.range_of(0, storage) for storage in (a, b)]
    found = pager.run(LINK, 60_000, fetches=[(0, *spans[0], 1), (0, *spans[1], 2)])
    assert found.faults.tolist() == [0, 0, 0]
    assert found.bytes_in.sum() == 110_000  # nothing comes in twice


def test_what_is_dismissed_leaves_beside_the_next_op():
    builder = TraceBuilder(alignment=1)
    a, b = builder.before(50_000), builder.before(50_000)
    builder.op("aten::sin_", reads=[a], writes=[a], duration_us=100.0)
    builder.op("aten::item", duration_us=100.0)
    builder.op("aten::cos", reads=[b], duration_us=1.0)
    pager = Pager.of_window(builder.build(), chunks_of(1000), [a, b], 1)
    late = pager.run(LINK, 50_000)
    early = pager.run(LINK, 50_000, dismissed=[(0, *pager.range_of(0, a))])
    assert late.op_us == pytest.approx([100, 100, 75]) and early.op_us == pytest.approx([100, 100, 25])
    assert late.bytes_out.sum() == early.bytes_out.sum() == 50_000


def test_managed_memory_makes_room_by_blocks_and_hands_out_what_is_there():
    builder = TraceBuilder(alignment=512)
    x = builder.before(8 * MIB)
    (y,) = builder.op("aten::relu", reads=[x], outputs=[8 * MIB])
    builder.free(y)
    trace = builder.build()
    into, out, faults = bytes_of(trace, MANAGED, 16 * MIB, Leaves.LEAST_RECENT, 2)
    assert (into, out, faults) == (0, 0, 0)
    into, out, faults = bytes_of(trace, MANAGED, 14 * MIB, Leaves.LEAST_RECENT, 2)
    assert into == out and into % MANAGED.block_bytes == 0 and faults > 0

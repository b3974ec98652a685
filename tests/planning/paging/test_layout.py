"""The chunks of storages, from one iteration to the next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import align_up
from memfit.machine import Faults
from memfit.planning.paging.layout import predecessors, window_layout
from trace_builder import TraceBuilder, traces

FAULTS = Faults(1.0, 8, 32)


def spans_of(layout, iteration):
    rows = zip(layout.first[iteration].tolist(), layout.last[iteration].tolist(), strict=True)
    return [range(first, last) for first, last in rows]


@given(traces(), st.integers(1, 3))
def test_storages_that_live_together_share_no_chunk_and_have_room(trace, iterations):
    layout = window_layout(trace, FAULTS, range(len(trace.storages)), (), iterations)
    for k in range(iterations):
        spans = spans_of(layout, k)
        for s, storage in enumerate(trace.storages):
            if storage.alloc == storage.free and not storage.born_before:
                continue  # no op sees it
            assert sum(layout.size_bytes[c] for c in spans[s]) == align_up(storage.size_bytes, trace.alignment)
            for other in range(s):
                its = trace.storages[other]
                if its.alloc < storage.free and storage.alloc < its.free:
                    assert not set(spans[s]) & set(spans[other])


@given(traces())
def test_a_storage_of_the_next_iteration_has_the_chunks_of_the_one_that_it_is(trace):
    layout = window_layout(trace, FAULTS, range(len(trace.storages)), (), 3)
    for storage, earlier in predecessors(trace).items():
        if trace.storages[storage].size_bytes > 0:
            assert spans_of(layout, 1)[storage] == spans_of(layout, 0)[earlier]
            assert spans_of(layout, 2)[storage] == spans_of(layout, 1)[earlier]


@given(traces())
def test_blocks_are_whole_and_of_one_storage(trace):
    layout = window_layout(trace, FAULTS, range(len(trace.storages)), (), 1)
    begin = layout.block_begin.tolist()
    assert begin[0] == 0 and begin[-1] == len(layout.size_bytes)
    assert all(1 <= b - a <= 4 for a, b in zip(begin, begin[1:], strict=False))
    starts = {span.start for span in spans_of(layout, 0) if span}
    assert starts <= set(begin)


def test_only_what_was_there_before_has_something_to_come_in():
    builder = TraceBuilder()
    kept, gone = builder.before(16), builder.before(24)
    builder.free(gone)  # before the first op
    builder.op("aten::relu", reads=[kept], outputs=[16])
    layout = window_layout(builder.build(), FAULTS, [0, 1, 2], (), 1)
    has_copy = [set(layout.has_copy[span.start : span.stop].tolist()) for span in spans_of(layout, 0)]
    assert has_copy == [{1}, {0}, {0}]

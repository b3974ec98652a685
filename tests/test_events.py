import numpy as np
from hypothesis import given

from memfit.events import (
    events_of_lifetimes,
    events_of_trace,
    lifetimes_of_rows,
    lifetimes_of_trace,
    live_after_steps,
)
from memfit.planning.lifetimes import live_bytes
from trace_builder import TraceBuilder, traces


def table(*rows):
    return lifetimes_of_rows((str(i), *row) for i, row in enumerate(rows))


def test_rows_act_in_time_and_at_one_time_frees_come_first():
    events = events_of_lifetimes(table((2, 4, 10), (0, 2, 20), (2, 3, 30), (0, 2, 40)))
    assert events.steps == (1, 3, ~1, ~3, 0, 2, ~2, ~0)
    assert events.sizes == (10, 20, 30, 40)
    assert events.initial == 0


def test_what_takes_no_bytes_takes_no_step():
    assert events_of_lifetimes(table((0, 1, 0), (0, 1, 5))).steps == (1, ~1)
    builder = TraceBuilder()
    builder.before(0)
    builder.op(outputs=[0, 3])
    events = events_of_trace(builder.build())
    assert (events.steps, events.initial, events.sizes) == ((2,), 0, (0, 0, 3))


def test_a_table_of_nothing():
    events = events_of_lifetimes(table())
    assert (events.sizes, events.steps) == ((), ())
    assert live_after_steps(events) == []


def test_a_trace_keeps_what_was_there_before_and_what_stays():
    builder = TraceBuilder()
    weight, gradient = builder.before(100), builder.before(200)
    builder.op(outputs=[10], scratch=[7])
    builder.free(gradient)
    builder.op(outputs=[20])
    events = events_of_trace(builder.build())
    assert events.initial == 2
    assert events.steps == (weight, gradient, 2, 3, ~3, ~gradient, 4)
    assert live_after_steps(events) == [100, 300, 310, 317, 310, 110, 130]


@given(traces())
def test_the_stream_of_a_trace_has_its_live_bytes(trace):
    events = events_of_trace(trace)
    live = [0, *live_after_steps(events)]
    expected = live_bytes(trace)
    assert live[events.initial] == expected[0]
    assert max(live) == expected.max()
    ticks = sorted(
        t for s in trace.storages if s.size_bytes for t in (s.alloc_tick, s.free_tick) if 0 <= t < trace.ticks
    )
    assert live[events.initial + 1 :] == [expected[tick + 1] for tick in ticks]


@given(traces())
def test_a_trace_and_its_lifetimes_are_one_stream(trace):
    whole, parts = events_of_lifetimes(lifetimes_of_trace(trace)), events_of_trace(trace)
    assert whole.steps[: len(parts.steps)] == parts.steps
    assert set(whole.steps[len(parts.steps) :]) == {~v for v in parts.steps if v >= 0 and ~v not in parts.steps}


def test_lifetimes_of_a_trace_have_its_lines():
    builder = TraceBuilder()
    builder.before(5, source="a.py:1")
    builder.op(outputs=[6], source="b.py:2")
    lifetimes = lifetimes_of_trace(builder.build())
    assert lifetimes.sources == ("a.py:1", "b.py:2")
    assert np.array_equal(lifetimes.lower, [-1, 0]) and np.array_equal(lifetimes.upper, [1, 1])
    assert len(lifetimes) == 2

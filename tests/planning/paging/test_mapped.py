"""A trace with its maps carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import Handover, Map, accessing_ops
from memfit.machine import Link, Machine
from memfit.planning.autoswap.search import least_held
from memfit.planning.lifetimes import births, live_bytes
from memfit.planning.paging.mapped import never_resident, with_maps
from trace_builder import TraceBuilder, traces

GIGABYTE = Machine("test", Link.of_bandwidth(1.0, 0.0), Link.of_bandwidth(2.0, 0.0))


def chain():
    """A weight of 100, an input a of 40 made by op 0, op 1 that reads both and makes b of 60, op 2 that reads b."""
    builder = TraceBuilder()
    weight = builder.before(100)
    (a,) = builder.op("aten::relu", reads=[weight], outputs=[40], duration_us=1)
    (b,) = builder.op("aten::mul", reads=[weight, a], outputs=[60], duration_us=2)
    builder.free(a)
    builder.op("aten::add_", reads=[b], writes=[weight], duration_us=4)
    builder.free(b)
    return builder.build(), weight, a, b


def test_an_op_does_not_use_what_it_maps_and_has_frames_of_its_own():
    trace, weight, a, b = chain()
    made = with_maps(trace, [Map(1, (weight, a), 16)])
    assert (made.ops[1].reads, made.ops[1].writes) == ((), (b,))
    assert made.ops[1].workspace_bytes == 60 + 16
    frames = made.storages[-1]
    assert (frames.size_bytes, frames.alloc, frames.free) == (16, 1, 2)
    assert frames.alloc_tick == made.ops[1].first_tick and frames.free_tick < made.ops[2].first_tick
    assert made.ops[0] == trace.ops[0] and made.ops[2].reads == trace.ops[2].reads


def test_what_is_mapped_may_be_away_meanwhile():
    trace, weight, a, _ = chain()
    assert least_held(trace).tolist() == [140, 200, 160]
    assert least_held(with_maps(trace, [Map(1, (weight,), 0)])).tolist() == [140, 100, 160]
    assert least_held(with_maps(trace, [Map(1, (a,), 0)])).tolist() == [140, 160, 160]
    assert least_held(with_maps(trace, [Map(1, (weight, a), 8)])).tolist() == [140, 68, 160]


def test_what_an_op_makes_and_all_map_has_no_bytes():
    trace, _, _, b = chain()
    made = with_maps(trace, [Map(1, (b,), 8), Map(2, (b,), 8)])
    assert made.storages[b].size_bytes == 0 and made.ops[1].workspace_bytes == 8
    assert least_held(made).tolist() == [140, 148, 108]
    assert never_resident(trace, [Map(1, (b,), 8)]) == frozenset()  # op 2 wants it there
    assert never_resident(trace, [Map(2, (b,), 8)]) == frozenset()  # it was made there


def test_what_is_freed_while_more_is_allocated_makes_room_for_it_when_it_is_away():
    builder = TraceBuilder()
    (a,) = builder.op("aten::ones", outputs=[40])
    builder.op("aten::sum", reads=[a], outputs=[4])
    builder.free(a)
    builder.alloc(30)
    trace = builder.build()
    assert least_held(trace).tolist() == [40, 44]
    assert least_held(with_maps(trace, [Map(1, (a,), 0)])).tolist() == [40, 34]


def test_a_weight_that_all_map_is_never_there():
    trace, weight, _, _ = chain()
    everywhere = [Map(op, (weight,), 0) for op in range(3)]
    assert never_resident(trace, everywhere) == {weight}
    assert least_held(with_maps(trace, everywhere)).tolist() == [40, 100, 60]


def test_a_stream_takes_the_time_of_its_bytes_each_way_and_what_is_new_is_not_read():
    trace, weight, _, b = chain()
    longer = [with_maps(trace, [each], GIGABYTE).ops[each.op].duration_us - trace.ops[each.op].duration_us
              for each in (Map(1, (weight,), 8), Map(2, (weight,), 8), Map(1, (b,), 8))]  # fmt: skip
    fault = 160.0  # the machine has none of its own
    assert np.allclose(longer, [0.05 + fault, 0.1 + fault, 0.06 + fault])
    assert with_maps(trace, [Map(1, (weight,), 0)], GIGABYTE).ops[1].duration_us == 2  # it is read in the tier


def test_a_handover_of_an_op_that_maps_is_left_out():
    trace, weight, a, b = chain()
    trace = replace(trace, handovers=(Handover(1, a, b),))
    assert with_maps(trace, [Map(1, (weight,), 0)]).handovers == ()
    assert with_maps(trace, [Map(2, (weight,), 0)]).handovers == trace.handovers


def some_of(storages):
    return st.sets(st.sampled_from(sorted(storages)), max_size=3) if storages else st.just(set())


@given(traces(max_ops=8, other_ticks=False), st.data())
def test_ticks_stay_in_their_ops_and_in_their_order(trace, data):
    maps = tuple(
        Map(op, tuple(sorted(storages)), data.draw(st.sampled_from([0, 8])))
        for op, its in enumerate(trace.ops)
        if (storages := data.draw(some_of({*its.reads, *its.writes})))
    )
    made = with_maps(trace, maps)
    count = len(trace.storages)
    own, frames = made.storages[:count], made.storages[count:]
    moments = [tick for s in made.storages for tick in (s.alloc_tick, s.free_tick) if 0 <= tick < made.ticks]
    assert sorted(moments) == list(range(made.ticks))  # each tick is one storage's
    assert {s: op for s, op in births(made).items() if s < count} == births(trace)
    assert [(s.alloc, s.free, s.category) for s in own] == [(s.alloc, s.free, s.category) for s in trace.storages]
    assert sum(s.size_bytes for s in frames) == sum(each.frame_bytes for each in maps)
    mapped = {(each.op, storage) for each in maps for storage in each.storages}
    for storage, ops in enumerate(accessing_ops(trace)):
        assert accessing_ops(made)[storage] == [op for op in ops if (op, storage) not in mapped]
    never = never_resident(trace, maps)
    starts = [op.first_tick for op in made.ops]
    assert [op.first_tick for op in trace.ops] == [
        start - sum(s.alloc_tick < start for s in frames) - sum(s.free_tick < start for s in frames) for start in starts
    ]
    plain = live_bytes(replace(trace, storages=tuple(
        replace(s, size_bytes=0) if i in never else s for i, s in enumerate(trace.storages)
    )))  # fmt: skip
    for at, op in enumerate(trace.ops):  # between ops there are no frames, and all else is as it was
        assert live_bytes(made)[made.ops[at].first_tick] == plain[op.first_tick]

"""What is mapped so that every op fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import Map
from memfit.planning.autoswap.search import least_held
from memfit.planning.paging.choice import Frames, choose_maps
from memfit.planning.paging.mapped import never_resident, with_maps
from trace_builder import TraceBuilder, traces

UNIT = 1 << 16
NONE = Frames.none()


def three():
    """Op 1 reads a of 3 and b of 2, and makes c of 3, which op 2 reads; a is used by op 3 again."""
    builder = TraceBuilder()
    (a,) = builder.op("aten::ones", outputs=[3 * UNIT])
    (b,) = builder.op("aten::ones", outputs=[2 * UNIT])
    (c,) = builder.op("aten::add", reads=[a, b], outputs=[3 * UNIT])
    builder.free(b)
    builder.op("aten::relu_", reads=[c], writes=[c])
    builder.free(c)
    builder.op("aten::relu_", reads=[a], writes=[a])
    return builder.build(), a, b, c


def test_nothing_is_mapped_where_everything_fits():
    trace, *_ = three()
    assert choose_maps(trace, 8 * UNIT, NONE) == ()


@pytest.mark.parametrize(("units", "expected"), [(7, [(2, "a")]), (5, [(2, "a")]), (4, [(2, "ab")]), (3, [(2, "ab")])])
def test_inputs_are_mapped_the_largest_first(units, expected):
    trace, a, b, _ = three()
    names = {a: "a", b: "b"}
    found = choose_maps(trace, units * UNIT, NONE)
    assert [(each.op, "".join(names[s] for s in each.storages)) for each in found] == expected


def test_what_an_op_makes_is_mapped_last_and_wherever_it_is_used():
    builder = TraceBuilder()
    weight = builder.before(UNIT)
    (a,) = builder.op("aten::mul", reads=[weight], outputs=[4 * UNIT])
    builder.op("aten::relu_", reads=[a], writes=[a])
    trace = builder.build()
    assert choose_maps(trace, 4 * UNIT, NONE) == (Map(0, (weight,), 0),)
    assert choose_maps(trace, 3 * UNIT, NONE) == (Map(0, (weight, a), 0), Map(1, (a,), 0))


def test_frames_count():
    trace, a, b, _ = three()
    frames = Frames.within(8 * UNIT, 4096)
    assert frames.least_bytes == 2 * UNIT
    assert choose_maps(trace, 8 * UNIT - 1, frames) == ()  # the budget is too small for frames
    larger = replace(trace, storages=tuple(replace(s, size_bytes=4 * s.size_bytes) for s in trace.storages))
    least = Frames.within(24 * UNIT, 4096).least_bytes
    assert choose_maps(larger, 24 * UNIT, Frames.within(24 * UNIT, 4096)) == (Map(2, (a,), least),)
    assert choose_maps(larger, 21 * UNIT, Frames.within(24 * UNIT, 4096)) == (Map(2, (a, b), least),)


def test_a_product_has_all_the_room_that_is_left_for_its_frames():
    builder = TraceBuilder()
    a, b = builder.before(20 * UNIT), builder.before(30 * UNIT)
    builder.op("aten::mm", reads=[a, b], outputs=[UNIT])
    (found,) = choose_maps(builder.build(), 40 * UNIT, Frames.within(40 * UNIT, 1))
    assert found == Map(0, (b,), 19 * UNIT)
    builder.op("aten::add", reads=[a, b], outputs=[UNIT])
    assert choose_maps(builder.build(), 40 * UNIT, Frames.within(40 * UNIT, 1))[1] == Map(1, (b,), 40 * UNIT // 16)


def test_a_product_maps_more_until_its_frames_have_room_for_half_of_it():
    def maps(units: int, op: str = "aten::mm") -> tuple[Map, ...]:
        builder = TraceBuilder()
        a, b = builder.before(20 * UNIT), builder.before(30 * UNIT)
        builder.op(op, reads=[a, b], outputs=[20 * UNIT])
        return choose_maps(builder.build(), units * UNIT, Frames.within(units * UNIT, 1))

    assert maps(55) == (Map(0, (1,), 15 * UNIT),)
    assert maps(54) == (Map(0, (0, 1), 34 * UNIT),)
    assert maps(44) == (Map(0, (0, 1, 2), 44 * UNIT),)  # 24 would be less than half of the two
    assert maps(54, "aten::add") == (Map(0, (1,), 54 * UNIT // 16),)


def test_what_was_there_before_and_does_not_stay_is_not_mapped():
    """Nobody knows since when it was idle, so that it cannot have left."""
    builder = TraceBuilder()
    batch, weight = builder.before(4 * UNIT), builder.before(2 * UNIT)
    builder.op("aten::add_", reads=[batch], writes=[weight])
    builder.free(batch)
    assert choose_maps(builder.build(), 5 * UNIT, NONE) == (Map(0, (weight,), 0),)
    assert choose_maps(builder.build(), 3 * UNIT, NONE) == ()


@given(traces(max_ops=8, sizes=st.integers(0, 40).map(lambda size: size * UNIT)), st.floats(0.2, 1))
def test_what_is_chosen_fits_and_names_what_ops_use_or_make(trace, share):
    whole = int(least_held(trace).max())
    budget = max(int(share * whole), 1)
    for frames in (NONE, Frames.within(budget, 8)):
        maps = choose_maps(trace, budget, frames)
        if not maps:
            continue
        made = with_maps(trace, maps)
        assert int(least_held(made).max()) <= budget < whole
        born_mapped = never_resident(trace, maps)
        for each in maps:
            its = trace.ops[each.op]
            assert {*its.reads, *its.writes} | born_mapped >= set(each.storages) and each.storages
            assert each.frame_bytes >= frames.least_bytes
        assert [each.op for each in maps] == sorted({each.op for each in maps})

"""Which inputs hand over their places, and the trace in which they do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import BEFORE_FIRST_TICK, Category, Handover, Trace
from memfit.planning.handing_over import (
    hand_over,
    hand_over_everywhere,
    in_effect,
    one_row_each,
    with_handovers,
    without_handovers,
)
from memfit.planning.joint.transformed import ticks_of
from memfit.planning.packing import pack
from memfit.simulate import load_bytes
from trace_builder import TraceBuilder, traces

SIZE = 1 << 20


class Chain:
    """A weight w, and a = mm(w), b = tanh(a), c = tanh(b); a, b and c are freed after what reads them."""

    def __init__(self, name: str = "aten::mm") -> None:
        builder = TraceBuilder(alignment=64)
        self.w = builder.before(SIZE)
        (self.a,) = builder.op(name, reads=[self.w], outputs=[SIZE])
        (self.b,) = builder.op("aten::tanh", reads=[self.a], outputs=[SIZE], scratch=[64])
        builder.free(self.a)
        (self.c,) = builder.op("aten::tanh", reads=[self.b], outputs=[SIZE])
        builder.free(self.b)
        builder.op("aten::sum", reads=[self.c])
        builder.free(self.c)
        self.builder = builder

    def trace(self, *handovers: tuple[int, int, int]) -> Trace:
        return self.builder.build(handovers=tuple(Handover(*each) for each in handovers))


def test_what_dies_is_freed_right_before_what_takes_its_place():
    chain = Chain()
    trace = chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c))
    made = hand_over(trace, 0)
    assert in_effect(made.trace) == {chain.b: chain.a, chain.c: chain.b}
    assert load_bytes(trace).tolist() == [2 * SIZE, 3 * SIZE + 64, 3 * SIZE, 2 * SIZE]
    assert load_bytes(made.trace).tolist() == [2 * SIZE, 2 * SIZE + 64, 2 * SIZE, 2 * SIZE]
    assert made.kept == (0, 1, 2)  # the calls that hand over, and those that make what they take
    assert [s.size_bytes for s in made.trace.storages] == [s.size_bytes for s in trace.storages]


def test_without_handovers_what_gave_its_place_lives_until_the_other_is_there():
    chain = Chain()
    trace = chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c))
    undone = without_handovers(hand_over(trace, 0).trace)
    assert undone.handovers == () and in_effect(undone) == {}
    # The scratch memory of the first tanh is allocated after its output, when the input is gone.
    assert load_bytes(undone).tolist() == [2 * SIZE, 3 * SIZE, 3 * SIZE, 2 * SIZE]
    assert without_handovers(undone) == undone


def test_ops_within_the_limit_hand_nothing_over():
    chain = Chain()
    trace = chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c))
    assert [each.op for each in hand_over(trace, 3 * SIZE).trace.handovers] == [1]
    none = hand_over(trace, 4 * SIZE)
    assert none.trace.handovers == none.kept == () and none.trace.storages == trace.storages


def test_what_cannot_be_made_again_stays():
    chain = Chain("custom::mm")
    trace = chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c))
    assert hand_over(trace, 0).trace.handovers == ()
    chain = Chain()
    trace = chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c))
    assert hand_over(trace, 0, never=[chain.a]).trace.handovers == ()  # without it the other cannot be made, either
    assert [each.giver for each in hand_over(trace, 0, never=[chain.b]).trace.handovers] == [chain.a]


def test_what_lives_on_or_was_there_before_stays():
    builder = TraceBuilder(alignment=64)
    w = builder.before(SIZE, Category.PARAMETER)
    (a,) = builder.op("aten::mm", reads=[w], outputs=[SIZE])
    (b,) = builder.op("aten::mul", reads=[w, a], outputs=[SIZE])
    builder.op("aten::mm", reads=[a, b])
    builder.free(a)
    trace = builder.build(handovers=(Handover(1, w, b), Handover(1, a, b)))
    assert hand_over(trace, 0).trace.handovers == ()


def test_of_two_inputs_the_one_that_is_made_again_sooner_gives_its_place():
    builder = TraceBuilder(alignment=64)
    w = builder.before(SIZE)
    (slow,) = builder.op("aten::mm", reads=[w], outputs=[SIZE], duration_us=9)
    (fast,) = builder.op("aten::relu", reads=[w], outputs=[SIZE], duration_us=1)
    (out,) = builder.op("aten::add", reads=[slow, fast], outputs=[SIZE])
    builder.free(slow, fast)
    builder.op("aten::mm", reads=[out])
    builder.free(out)
    for pairs in ((slow, fast), (fast, slow)):
        trace = builder.build(handovers=tuple(Handover(2, giver, out) for giver in pairs))
        assert in_effect(hand_over(trace, 0).trace) == {out: fast}


def test_everything_that_dies_may_hand_over_where_nobody_has_to_make_it_again():
    chain = Chain("custom::mm")
    trace = hand_over_everywhere(chain.trace((1, chain.a, chain.b), (2, chain.b, chain.c)))
    lifetimes, row = one_row_each(trace)
    assert row.tolist() == [0, 1, 1, 2, 1]  # the scratch of the second op has its own
    assert lifetimes.size.tolist() == [SIZE, SIZE, 64]
    assert pack(lifetimes, alignment=64).footprint == 2 * SIZE + 64


def test_nobody_gives_twice_and_nobody_takes_twice():
    builder = TraceBuilder()
    (x, y) = builder.op("load", outputs=[8, 8])
    (a, b) = builder.op("aten::exp", reads=[x, y], outputs=[8, 8])
    builder.free(x, y)
    builder.op("use", reads=[a, b])
    builder.free(a, b)
    trace = builder.build(handovers=(Handover(1, x, a), Handover(1, x, b), Handover(1, y, a)))
    assert in_effect(hand_over_everywhere(trace)) == {a: x}


def test_small_storages_stay():
    chain = Chain()
    trace = chain.trace((1, chain.a, chain.b))
    assert hand_over(trace, 2 * SIZE).trace.handovers
    small = TraceBuilder(alignment=64)
    w = small.before(1 << 30)
    (a,) = small.op("aten::mm", reads=[w], outputs=[64])
    (b,) = small.op("aten::tanh", reads=[a], outputs=[64])
    small.free(a)
    small.op("aten::mm", reads=[b])
    small.free(b)
    assert hand_over(small.build(handovers=(Handover(1, a, b),)), 1 << 29).trace.handovers == ()


@given(traces(), st.data())
def test_all_other_events_keep_their_order_and_no_op_needs_more(trace, data):
    storages = trace.storages
    pairs = [
        Handover(op, giver, taker)
        for op, each in enumerate(trace.ops)
        for taker in each.writes
        for giver in each.reads
        if storages[taker].alloc == op and storages[taker].alloc_tick != BEFORE_FIRST_TICK
        and storages[giver].alloc_tick < storages[taker].alloc_tick < storages[giver].free_tick < trace.ticks
        and storages[giver].free <= op + 1
    ]  # fmt: skip
    chosen: dict[int, Handover] = {}
    for pair in data.draw(st.permutations(pairs)):
        if pair.giver not in chosen and pair.taker not in {each.taker for each in chosen.values()}:
            chosen[pair.giver] = pair
    made = with_handovers(trace, chosen.values())
    before, later = (list(filter(None, ticks_of(each))) for each in (trace, made))
    assert sorted(later) == sorted(before)  # the same events
    kept = [event for event in later if event[1] or event[0] not in chosen]
    assert kept == [event for event in before if event[1] or event[0] not in chosen]
    after = dict(pairwise(ticks_of(made)))
    for pair in chosen.values():
        assert after[pair.giver, False] == (pair.taker, True)
    assert (load_bytes(made) <= load_bytes(trace)).all()
    assert made.ops == trace.ops

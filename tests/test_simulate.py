"""The simulator against a slow one that keeps every copy and starts from nothing at each question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from memfit.errors import InputError
from memfit.ir import Direction, Swap, align_up
from memfit.machine import Link, Machine
from memfit.planning.lifetimes import live_bytes
from memfit.simulate import Simulator, load_bytes, planned_bytes, simulate
from swap_builder import MACHINES, plan_of, plans
from trace_builder import TraceBuilder, traces

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 2000))  # a byte takes 1 us out, 2 us in


class SlowLanes:
    def __init__(self, both):
        self.both, self.copies = both, {Direction.OUT: [], Direction.IN: []}

    def ends(self):
        """(start, end) of every copy enqueued so far, by replaying both lanes from time 0."""
        left = {way: [work for _, work in rows] for way, rows in self.copies.items()}
        spans = {way: [[None, None] for _ in rows] for way, rows in self.copies.items()}
        head, now = dict.fromkeys(Direction, 0), 0.0
        while any(head[way] < len(self.copies[way]) for way in Direction):
            busy = [w for w in Direction if head[w] < len(left[w]) and self.copies[w][head[w]][0] <= now]
            speed = self.both if len(busy) == 2 else 1.0
            waiting = [self.copies[w][head[w]][0] for w in Direction if w not in busy and head[w] < len(self.copies[w])]
            step = min([now + left[w][head[w]] / speed for w in busy] + waiting)
            for way in busy:
                index = head[way]
                if spans[way][index][0] is None:
                    spans[way][index][0] = now
                ended = now + left[way][index] / speed <= step
                left[way][index] -= (step - now) * speed
                if ended:
                    spans[way][index][1] = step
                    head[way] += 1
            now = step
        return spans


def slow_simulate(trace, machine, swaps, iterations):
    """(iteration, stalls, resident) of the last of some iterations, and the spans of the copies of the one before."""
    lanes, count, now = SlowLanes(machine.both_factor), len(trace.ops), 0.0
    load, begins = load_bytes(trace), []
    outs, ins = {}, {}  # (swap, iteration in which the absence began) -> number of the copy
    for iteration in range(iterations):
        begins.append(now)
        stalls, resident = [], []
        for op in range(count):
            at = iteration * count + op

            def due(field, at=at):
                for index, swap in sorted(
                    enumerate(swaps), key=lambda row: row[1].in_before - row[1].in_start if field[:2] == "in" else 0
                ):
                    begun, rest = divmod(at - getattr(swap, field), count)
                    if rest == 0 and begun >= 0:
                        yield index, swap, begun

            def wait(way, copy, index, op=op, stalls=stalls):
                nonlocal now
                end = lanes.ends()[way][copy][1]
                if end > now:
                    stalls.append((op, index, way, end - now))
                    now = end

            for index, _, begun in due("free_by"):
                wait(Direction.OUT, outs[index, begun], index)
            for index, swap, begun in due("in_start"):
                ins[index, begun] = len(lanes.copies[Direction.IN]) if swap.returns else None
                if swap.returns:
                    lanes.copies[Direction.IN].append((now, machine.into.copy_us(swap.size_bytes)))
            for index, swap, begun in due("in_before"):
                if swap.returns:
                    wait(Direction.IN, ins[index, begun], index)
            spans = lanes.ends()
            away = sum(
                align_up(swap.size_bytes, trace.alignment)
                for (index, begun), copy in outs.items()
                for swap in [swaps[index]]
                if (index, begun) not in ins and spans[Direction.OUT][copy][1] <= now
            )
            resident.append(int(load[op]) - away)
            now += trace.ops[op].duration_us
            for index, swap in enumerate(swaps):
                if swap.out_after == op:
                    outs[index, iteration] = len(lanes.copies[Direction.OUT])
                    lanes.copies[Direction.OUT].append((now, machine.out.copy_us(swap.size_bytes)))
    lanes.copies[Direction.OUT].append((now, 0.0))  # so that those of the last iteration run to their ends
    spans, before = lanes.ends(), iterations - 2
    copies = {
        (way, index): tuple(moment - begins[before] for moment in spans[way][copy])
        for way, made in ((Direction.OUT, outs), (Direction.IN, ins))
        for (index, begun), copy in made.items()
        if begun == before and copy is not None
    }
    return now - begins[-1], stalls, resident, copies


@given(plans(max_ops=8), MACHINES)
def test_it_agrees_with_the_slow_one(trace_and_plan, machine):
    trace, plan = trace_and_plan
    found = simulate(trace, machine, plan)
    iteration, stalls, resident, copies = slow_simulate(trace, machine, plan.swaps, 16)
    scale = 1e-6 * max(iteration, 1)
    assert found.iteration_us == pytest.approx(iteration, abs=scale)
    for copy in found.copies:
        expected = copies[copy.direction, copy.swap]
        assert (copy.start_us, copy.end_us) == (
            pytest.approx(expected[0], abs=scale),
            pytest.approx(expected[1], abs=scale),
        )
    assert {(copy.direction, copy.swap) for copy in found.copies} == copies.keys()
    assert sum(stall.duration_us for stall in found.stalls) == pytest.approx(sum(s[3] for s in stalls), abs=scale)
    long = [(s.op, s.swap, s.direction) for s in found.stalls if s.duration_us > scale]
    assert long == [stall[:3] for stall in stalls if stall[3] > scale]
    if not any(0 < stall[3] <= scale for stall in stalls):
        assert list(found.resident_bytes) == resident or scale > 1e-3


@given(plans(), MACHINES)
def test_figures_fit_together(trace_and_plan, machine):
    trace, plan = trace_and_plan
    found = simulate(trace, machine, plan)
    assert found.iteration_us == pytest.approx(found.compute_us + found.stall_us, rel=1e-6, abs=1e-6)
    assert all(a <= b for a, b in zip(found.resident_bytes, load_bytes(trace).tolist(), strict=True))
    held = planned_bytes(trace, plan.swaps).tolist()
    assert all(seen <= promised for seen, promised in zip(found.resident_bytes, held, strict=True))
    for copy in found.copies:
        assert copy.end_us >= copy.start_us and copy.size_bytes == plan.swaps[copy.swap].size_bytes
    total = sum(swap.size_bytes for swap in plan.swaps)
    assert found.copied_bytes(Direction.OUT) == total >= found.host_bytes
    assert found.copied_bytes(Direction.IN) == sum(swap.size_bytes for swap in plan.swaps if swap.returns)


def test_what_does_not_return_has_no_copy_in_and_nothing_waits_for_one():
    builder = TraceBuilder()
    weight = builder.before(30)
    (x,) = builder.op(outputs=[10], duration_us=10.0)
    builder.op(reads=[weight], duration_us=10.0)
    builder.op(duration_us=5.0)
    builder.free(x)
    builder.op(reads=[weight], duration_us=10.0)
    trace = builder.build()
    gone = Swap(x, 10, 0, 2, 3, 3, False, returns=False)
    found = simulate(trace, LINK, plan_of(trace, gone))
    assert [(copy.direction, copy.swap) for copy in found.copies] == [(Direction.OUT, 0)]
    assert found.resident_bytes == (40, 40, 30, 30) and found.stall_us == 0
    # The weight's copy in is on its way when x is freed: that waits for nothing.
    both = simulate(trace, LINK, plan_of(trace, gone, Swap(weight, 30, 1, 2, 2, 3, False)))
    assert {(stall.op, stall.swap) for stall in both.stalls} <= {(2, 0), (2, 1), (3, 1)}


@given(traces())
def test_load_is_the_live_bytes_of_an_ops_ticks(trace):
    live = live_bytes(trace, aligned=True) + trace.pinned_bytes
    begins = [0, *(op.first_tick for op in trace.ops[1:]), trace.ticks]
    expected = [max(live[a : b + 1]) for a, b in zip(begins, begins[1:], strict=False)]
    assert load_bytes(trace).tolist() == expected
    assert max(expected) == max(live)


def five_ops():
    """A weight of 10 bytes used by the first and the last of five ops of 10 us; one of 100 bytes by all."""
    builder = TraceBuilder()
    weight, other = builder.before(10), builder.before(100)
    for used in ([weight, other], [other], [other], [other], [weight, other]):
        builder.op(reads=used, duration_us=10.0)
    return builder.build()


def test_copies_that_fit_cost_nothing():
    found = simulate(five_ops(), LINK, plan_of(five_ops(), Swap(0, 10, 0, 2, 2, 4, False)))
    assert found.iteration_us == 50 and not found.stalls
    assert found.resident_bytes == (110, 110, 110, 110, 110)
    assert [(c.direction, c.start_us, c.end_us) for c in found.copies] == [("out", 10, 20), ("in", 20, 40)]


def test_bytes_are_free_from_the_end_of_the_copy_out_to_the_start_of_the_copy_in():
    found = simulate(five_ops(), LINK, plan_of(five_ops(), Swap(0, 10, 0, 3, 3, 4, False)))
    assert found.resident_bytes == (110, 110, 100, 110, 110)
    assert found.stalls == (replace(found.stalls[0], op=4, swap=0, direction=Direction.IN, duration_us=10.0),)
    assert found.iteration_us == 60 and found.overhead == pytest.approx(0.2)


def test_a_wait_for_a_copy_out_delays_what_follows():
    slow = Machine("m", Link.affine(5, 2000), Link.affine(0, 1000))
    found = simulate(five_ops(), slow, plan_of(five_ops(), Swap(0, 10, 0, 2, 3, 4, False)))
    assert [(s.op, s.direction, s.duration_us) for s in found.stalls] == [(2, Direction.OUT, 15.0)]
    assert found.start_us == (0, 10, 35, 45, 55)


def test_a_cyclic_absence_is_judged_once_it_is_steady():
    builder = TraceBuilder()
    weight = builder.before(10)
    for used in ([], [weight], [], []):
        builder.op(reads=used, duration_us=10.0)
    trace = builder.build()
    found = simulate(trace, LINK, plan_of(trace, Swap(0, 10, 1, 3, 4, 5, True)))
    assert found.resident_bytes == (10, 10, 10, 0)
    assert found.iteration_us == 50 and [(s.op, s.duration_us) for s in found.stalls] == [(1, 10.0)]


def test_the_copies_are_those_of_a_steady_iteration():
    # The copy out of 0 begins beside the copy in of 1, which left in the iteration before: but not in the very first.
    builder = TraceBuilder()
    first, last = builder.before(2), builder.before(1)
    builder.op(reads=[first])
    for _ in range(9):
        builder.op()
    builder.op(reads=[first, last])
    builder.op()
    trace = builder.build()
    swaps = Swap(0, 2, 0, 6, 6, 10, False), Swap(1, 1, 10, 12, 13, 22, True)
    found = simulate(trace, replace(LINK, both_factor=0.5), plan_of(trace, *swaps))
    assert found.iteration_us == 12.0
    spans = {(copy.swap, copy.direction): (copy.start_us, copy.end_us) for copy in found.copies}
    assert spans[0, Direction.OUT] == (1.0, 5.0)


def test_reading_while_it_is_copied_out_keeps_the_bytes():
    builder = TraceBuilder()
    weight = builder.before(1)
    for used in ([weight], [], [weight], [], [], [weight]):
        builder.op(reads=used, duration_us=10.0)
    trace = builder.build()
    found = simulate(trace, LINK, plan_of(trace, Swap(0, 1, 0, 4, 4, 5, False)))
    assert found.resident_bytes == (1, 1, 1, 1, 1, 1)
    found = simulate(trace, LINK, plan_of(trace, Swap(0, 1, 0, 3, 5, 5, False)))
    assert found.resident_bytes == (1, 1, 1, 0, 0, 1)


def test_both_directions_slow_each_other_down():
    builder = TraceBuilder()
    a, b = builder.before(10), builder.before(10)
    for used in ([b], [], [a], [], [b]):
        builder.op(reads=used, duration_us=20.0)
    trace = builder.build()
    link = Link.affine(0, 1000)
    swaps = (Swap(b, 10, 0, 2, 3, 4, False), Swap(a, 10, 2, 4, 6, 7, True))
    ends = {}
    for both in (1.0, 0.5):
        found = Simulator(trace, Machine("m", link, link, both)).timeline(swaps)
        ends[both] = {(c.swap, c.direction): c.end_us - c.start_us for c in found.copies}
    assert ends[1.0][0, Direction.IN] == ends[1.0][1, Direction.OUT] == pytest.approx(10)
    assert ends[0.5][0, Direction.IN] == ends[0.5][1, Direction.OUT] == pytest.approx(20)


def test_plans_that_cannot_be_are_refused():
    trace = five_ops()
    with pytest.raises(InputError, match="for another trace"):
        simulate(trace, LINK, replace(plan_of(trace), signature="other"))
    for swap in (Swap(0, 10, 2, 2, 3, 4, False), Swap(0, 10, 0, 3, 2, 4, False), Swap(0, 10, 5, 6, 7, 8, True)):
        with pytest.raises(InputError, match="cannot be simulated"):
            simulate(trace, LINK, plan_of(trace, swap))


def test_spans_wrap():
    trace = five_ops()
    held = planned_bytes(trace, [Swap(0, 10, 2, 4, 7, 8, True)])
    assert np.array_equal(held, [100, 100, 110, 110, 100])


def test_copies_of_what_a_tier_compresses_take_the_time_of_what_is_left():
    builder = TraceBuilder()
    (storage,) = builder.op(outputs=[100], duration_us=1)
    for _ in range(8):
        builder.op(duration_us=100)
    builder.op(reads=[storage], duration_us=1)
    trace = builder.build()
    smaller = replace(trace, storages=(replace(trace.storages[0], stored_bytes=25),))
    swap = Swap(storage, 100, out_after=0, free_by=4, in_start=5, in_before=9, cyclic=False)
    for of, part in ((trace, 1.0), (smaller, 0.25)):
        copies = Simulator(of, LINK).timeline([swap]).copies
        assert [copy.end_us - copy.start_us for copy in copies] == [100 * part, 200 * part]
        assert [copy.size_bytes for copy in copies] == [100, 100]

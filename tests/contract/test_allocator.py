"""What every replayed allocator and planner promises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events_builder import stream, streams
from memfit.baselines.allocators import ALLOCATORS, PLANNERS, allocator_names, run_allocator
from memfit.events import live_after_steps

allocators = pytest.mark.parametrize("name", sorted(ALLOCATORS))
planners = pytest.mark.parametrize("name", sorted(PLANNERS))
both = pytest.mark.parametrize("name", sorted(allocator_names()))


def walk(name, events):
    """Replay; after each step yield the allocator and the live blocks as {address: size}."""
    allocator, address_of, live = ALLOCATORS[name](), {}, {}
    for step in events.steps:
        if step >= 0:
            address_of[step] = allocator.malloc(events.sizes[step])
            assert address_of[step] not in live
            live[address_of[step]] = events.sizes[step]
        else:
            address = address_of.pop(~step)
            del live[address]
            allocator.free(address)
        yield allocator, live


@allocators
@given(events=streams())
def test_live_blocks_are_disjoint_aligned_and_inside_what_is_reserved(name, events):
    for allocator, live in walk(name, events):
        blocks = sorted(live.items())
        assert all(a + size <= b for (a, size), (b, _) in zip(blocks, blocks[1:], strict=False))
        assert all(address % allocator.alignment == 0 for address in live)
        ranges = sorted(allocator.driver.ranges.items())
        for address, size in blocks:
            assert any(begin <= address and address + size <= begin + length for begin, length in ranges)
        assert sum(length for _, length in ranges) == allocator.driver.reserved_bytes >= sum(live.values())


@allocators
@given(events=streams(max_steps=20))
def test_once_all_is_freed_the_largest_request_of_before_needs_no_more_memory(name, events):
    allocator, live = ALLOCATORS[name](), {}
    for allocator, live in walk(name, events):  # noqa: B007
        pass
    for address in list(live):
        allocator.free(address)
    reserved = allocator.driver.reserved_bytes
    if name.startswith("none"):
        assert reserved == 0
    elif events.steps:
        allocator.malloc(max(events.sizes))
        assert allocator.driver.reserved_bytes == reserved


@both
@given(events=streams(max_steps=30))
def test_the_same_stream_has_the_same_outcome(name, events):
    one, two = run_allocator(name, events), run_allocator(name, events)
    figures = ("footprint_bytes", "peak_live_bytes", "fragmentation", "driver_allocations", "calls")
    assert all(getattr(one, figure) == getattr(two, figure) for figure in figures)


@both
@given(events=streams(max_steps=30))
def test_figures_fit_together(name, events):
    outcome = run_allocator(name, events)
    live = live_after_steps(events)
    assert outcome.footprint_bytes >= outcome.peak_live_bytes
    assert 0 <= outcome.fragmentation < 1
    assert outcome.over_peak >= 0 and outcome.us_per_call >= 0
    if name in ALLOCATORS:
        assert outcome.peak_live_bytes == max(live, default=0)
        assert outcome.calls == len(events.steps)


@both
def test_no_event_costs_nothing(name):
    outcome = run_allocator(name, stream())
    assert outcome.footprint_bytes == 0 and outcome.peak_live_bytes == 0
    assert outcome.over_peak == outcome.fragmentation == 0


@allocators
def test_what_is_freed_is_used_again(name):
    sizes = [3 << 20] * 20
    events = stream(*(step for k, size in enumerate(sizes) for step in (size, f"-{k}")))
    assert run_allocator(name, events).footprint_bytes <= 20 << 20


@planners
@given(events=streams())
def test_plans_are_disjoint_where_lifetimes_overlap(name, events):
    check_plan(PLANNERS[name](events), events)


@planners
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_what_lives_together_lies_side_by_side(name, sizes):
    whole = stream(*sizes, *(f"-{k}" for k in range(len(sizes))))
    packed = PLANNERS[name](whole)
    assert packed.footprint_bytes == sum(sizes)
    check_plan(packed, whole)


def check_plan(packed, events):
    born, freed = {}, {}
    for time, step in enumerate(events.steps):
        if step >= 0:
            born[step] = time
        else:
            freed[~step] = time
    for storage, time in born.items():
        if packed.begin <= time < packed.end:
            assert storage in packed.offsets
    placed = [(v, o, born[v], freed.get(v, math.inf)) for v, o in packed.offsets.items()]
    for index, (a, offset, lower, upper) in enumerate(placed):
        assert offset >= 0 and offset + events.sizes[a] <= packed.footprint_bytes
        for b, other, other_lower, other_upper in placed[:index]:
            if lower < other_upper and other_lower < upper:
                assert offset + events.sizes[a] <= other or other + events.sizes[b] <= offset

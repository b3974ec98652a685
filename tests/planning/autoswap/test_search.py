"""The planner against every choice of gaps and ops there is, on small traces."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memfit.baselines.policies import find_policy
from memfit.errors import BudgetError
from memfit.ir import Direction, Swap, align_up
from memfit.machine import Link, Machine
from memfit.planning.autoswap import (
    ANY_GAP,
    Thresholds,
    candidates,
    plan_at_no_cost,
    plan_under_budget,
    smallest_budget,
)
from memfit.planning.autoswap.candidates import end_of, latest_free_by
from memfit.planning.autoswap.search import Search
from memfit.planning.autoswap.slack import relax
from memfit.planning.lifetimes import gaps
from memfit.simulate import Simulator, load_bytes, planned_bytes
from memfit.validate_plan import check_plan
from swap_builder import MACHINES, SIZES, plans
from trace_builder import TraceBuilder, traces

TRACES = traces(sizes=SIZES, max_ops=10)
LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))  # a byte takes 1 us each way


def chain(layers, *, idle_us=10.0, size=10):
    """A forward that leaves `size` bytes a layer, and a backward that reads them in reverse."""
    builder = TraceBuilder()
    made = [builder.op(outputs=[size], duration_us=idle_us)[0] for _ in range(layers)]
    for storage in reversed(made):
        builder.op(reads=[storage], duration_us=idle_us)
        builder.free(storage)
    return builder.build()


@given(TRACES, MACHINES, st.floats(0, 1), st.integers(0, 3))
def test_every_plan_is_valid_and_every_refusal_is_right(trace, machine, share, seed):
    peak, least = int(load_bytes(trace).max()), smallest_budget(trace)[0]
    budget = int(share * (peak + 2))
    try:
        found = plan_under_budget(trace, machine, budget, effort=0.01, seed=seed)
    except BudgetError as error:
        assert budget < least == error.required_bytes
        return
    assert budget >= least
    assert check_plan(trace, found.plan) is None
    assert found.timeline.peak_bytes <= planned_bytes(trace, found.plan.swaps).max() <= budget
    if budget >= peak:
        assert not found.plan.swaps


@given(plans(), st.floats(0, 1))
def test_waits_for_copies_out_are_as_late_as_the_budget_allows(trace_and_plan, share):
    trace, plan = trace_and_plan
    swaps = [swap for swap in plan.swaps if swap.free_by < swap.in_start]
    fits = int(planned_bytes(trace, swaps).max())
    budget = fits + int(share * (int(load_bytes(trace).max()) - fits))
    relaxed = relax(trace, swaps, budget)
    held = planned_bytes(trace, relaxed)
    assert held.max() <= budget
    for before, swap in zip(swaps, relaxed, strict=True):
        assert before.free_by <= swap.free_by < swap.in_start
        is_needed = held[swap.free_by % len(trace.ops)] + align_up(swap.size_bytes, trace.alignment) > budget
        last = latest_free_by(trace, swap.storage, swap.in_before, returns=swap.returns)
        assert is_needed or swap.free_by == min(swap.in_start - 1, max(last, before.free_by))


def test_gradients_that_live_into_the_next_iteration_leave_for_good():
    builder = TraceBuilder()
    weight, old = builder.before(10), builder.before(10)
    (kept,) = builder.op(reads=[weight], outputs=[40], duration_us=20.0)
    builder.free(old)  # the gradients of the step before go when the loss is there
    builder.op(reads=[weight, kept], duration_us=20.0)
    builder.free(kept)
    (gradient,) = builder.op(reads=[weight], outputs=[10], duration_us=20.0)
    builder.op(reads=[gradient], writes=[weight], duration_us=20.0)
    trace = replace(builder.build(), alignment=1)
    found = plan_under_budget(trace, LINK, 50)  # the weight and what op 0 makes
    assert found.plan.swaps == (Swap(gradient, 10, 3, 4, 5, 5, True, returns=False),)
    assert check_plan(trace, found.plan) is None and found.timeline.copied_bytes(Direction.IN) == 0


@pytest.mark.parametrize("us_a_byte", [1, 100])
def test_outputs_that_live_until_the_next_ones_are_made_have_left_before(us_a_byte):
    builder = TraceBuilder()
    old = builder.before(10)
    (new,) = builder.op(outputs=[10], duration_us=20.0)
    builder.op(duration_us=20.0)
    builder.free(old)
    builder.op(reads=[new], duration_us=20.0)
    builder.op(duration_us=20.0)
    trace, link = replace(builder.build(), alignment=1), Link.affine(0, 1000 * us_a_byte)
    found = plan_under_budget(trace, Machine("m", link, link), 10)
    (swap,) = found.plan.swaps
    assert swap.free_by <= 4 and replace(swap, free_by=3) == Swap(new, 10, 2, 3, 6, 6, True, returns=False)
    assert check_plan(trace, found.plan) is None
    (relaxed,) = relax(trace, found.plan.swaps, 20)
    assert relaxed.free_by == 4


def brute_force(trace, machine, budget):
    """The least time of an iteration among all choices of gaps and all ops to wait and begin at."""
    simulator = Simulator(trace, machine)
    options = []
    for gap in gaps(trace):
        end = end_of(trace, gap)
        ops = range(gap.after + 1, end + 1)
        last = latest_free_by(trace, gap.storage, end, returns=gap.returns)
        back = ops if gap.returns else [end]
        spans = [(free_by, in_start) for free_by in ops for in_start in back if free_by < in_start and free_by <= last]
        about = gap.storage, gap.size_bytes, gap.after
        options.append([None, *(Swap(*about, *span, end, gap.cyclic, gap.returns) for span in spans)])
    best = None
    for choice in product(*options):
        swaps = sorted((s for s in choice if s), key=lambda s: (s.out_after, s.in_before, s.storage))
        if planned_bytes(trace, swaps).max() <= budget:
            took = simulator.timeline(swaps).iteration_us
            best = took if best is None else min(best, took)
    return best


@given(traces(sizes=SIZES, max_ops=5), MACHINES, st.floats(0, 1))
def test_no_plan_beats_all_there_are(trace, machine, share):
    spans = [end_of(trace, gap) - gap.after for gap in gaps(trace)]
    if len(spans) > 3 or sum(spans) > 12:
        return
    least, peak = smallest_budget(trace)[0], int(load_bytes(trace).max())
    budget = least + int(share * (peak - least))
    found = plan_under_budget(trace, machine, budget, effort=0.01)
    best = brute_force(trace, machine, budget)
    assert found.timeline.iteration_us >= best - 1e-6 * max(best, 1)


@pytest.mark.parametrize("spared", [0, 5, 10, 15, 20, 25])
def test_on_a_chain_it_is_as_good_as_all_there_are(spared):
    trace = chain(4, idle_us=7.0)
    budget = int(load_bytes(trace).max()) - spared
    found = plan_under_budget(trace, LINK, budget, effort=0.1)
    assert found.timeline.iteration_us == pytest.approx(brute_force(trace, LINK, budget))


def leaving_together():
    """Two storages that leave and come back at the same ops; the next op needs the room of the larger one."""
    builder = TraceBuilder()
    builder.op(reads=[builder.before(3), builder.before(10)], duration_us=13.0)
    for size, duration_us in ((10, 5.0), (13, 50.0)):
        builder.free(*builder.op(outputs=[size], duration_us=duration_us))
    return builder.build()


def due_beside_ahead():
    """One storage that comes back at its use, and one whose copy begins at the same op, ahead of its use."""
    builder = TraceBuilder()
    due, ahead = builder.before(22), builder.before(20)
    builder.op(reads=[due], duration_us=1.0)
    builder.op(outputs=[8], duration_us=1.0)
    builder.op(reads=[ahead], duration_us=1.0)
    builder.op(outputs=[8], duration_us=100.0)
    builder.op(reads=[ahead], outputs=[8], duration_us=656.0)
    builder.op(outputs=[44], duration_us=1.0)
    return builder.build()


@given(TRACES, MACHINES, st.floats(0.5, 1))
@example(leaving_together(), LINK, 0.5)
@example(due_beside_ahead(), replace(LINK, both_factor=0.5), 0.62)
def test_the_schedulers_time_is_the_simulators(trace, machine, share):
    search = Search.of(trace, machine, ANY_GAP)
    found = search.run(int(share * load_bytes(trace).max()), 0.01, 0)
    if found.is_feasible:
        took = search.simulator.timeline(search.swaps(found)).iteration_us
        assert took <= found.iteration_us * (1 + 1e-6) + 1e-6


@given(TRACES, MACHINES, st.floats(0.3, 1))
def test_the_same_question_has_the_same_answer(trace, machine, share):
    budget = max(smallest_budget(trace)[0], int(share * load_bytes(trace).max()))
    one, two = (plan_under_budget(trace, machine, budget, effort=0.01) for _ in range(2))
    assert one == two


def recurring(layers):
    """A chain whose layers have weights too, which leave over the iteration's end."""
    builder = TraceBuilder()
    weights = [builder.before(5) for _ in range(layers)]
    made = [builder.op(reads=[weight], outputs=[10], duration_us=8.0)[0] for weight in weights]
    for weight, storage in zip(reversed(weights), reversed(made), strict=True):
        builder.op(reads=[weight, storage], duration_us=8.0)
        builder.free(storage)
    return builder.build()


SLOW = Machine("m", Link.affine(0, 5000), Link.affine(0, 5000))  # so that everything would come back at once


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_the_times_agree_where_copies_wait_for_hundreds_of_ops(share):
    trace = recurring(200)
    search = Search.of(trace, SLOW, ANY_GAP)
    budget = int(share * load_bytes(trace).max())
    found = search.run(budget, 0.05, 0)
    swaps = search.swaps(found)
    assert found.iteration_us > 1.2 * found.compute_us
    assert search.simulator.timeline(swaps).iteration_us == pytest.approx(found.iteration_us)
    assert check_plan(trace, search.plan(budget, found).plan) is None


def test_work_is_near_linear_in_the_ops():
    steps = []
    for layers in (250, 1000):
        trace = recurring(layers)
        found = Search.of(trace, SLOW, ANY_GAP).run(int(0.5 * load_bytes(trace).max()), 0, 0)
        assert found.is_feasible
        steps.append(found.steps)
    assert steps[1] < 8 * steps[0], "four times the ops, and not 16 times the work"


def test_of_many_candidates_a_sample_covers_an_op():
    trace = chain(9000)
    search = Search.of(trace, LINK, Thresholds())
    assert len(search.found) > 8192
    budget = int(0.5 * load_bytes(trace).max())
    found = search.run(budget, 0, 0)
    assert found.is_feasible and found.iteration_us >= found.compute_us
    assert check_plan(trace, search.plan(budget, found).plan) is None


def test_by_default_a_trace_has_as_many_candidates_as_ops():
    assert [Thresholds().most_of(ops) for ops in (10, 4000, 50_000)] == [4000, 4000, 50_000]
    assert Thresholds(most=3).most_of(50_000) == 3


def test_what_the_gap_hides_costs_nothing():
    trace = chain(4)
    found = plan_under_budget(trace, LINK, 30, effort=0.1)
    assert found.timeline.overhead == 0 and len(found.plan.swaps) == 1
    assert found.plan.swaps[0].storage == 0  # the one with the longest absence


def test_the_least_memory_at_no_cost():
    trace = chain(6)
    found = plan_at_no_cost(trace, LINK, effort=0.3)
    assert found.timeline.overhead == pytest.approx(0, abs=1e-5)
    assert check_plan(trace, found.plan) is None
    # One byte a microsecond: a layer's bytes leave while the next layer runs. The next copy out follows, and what
    # is neither gone nor coming is the layer at work, the one that leaves and the two around the turn.
    assert found.plan.budget_bytes <= 40
    slow = Machine("m", Link.affine(0, 10**6), Link.affine(0, 10**6))
    assert plan_at_no_cost(trace, slow, effort=0.1).plan.budget_bytes >= 59


@given(TRACES, MACHINES)
def test_no_cost_never_needs_more_than_the_peak(trace, machine):
    found = plan_at_no_cost(trace, machine, effort=0.02)
    assert found.plan.budget_bytes <= load_bytes(trace).max()
    assert found.timeline.overhead <= 1e-5
    assert check_plan(trace, found.plan) is None


@given(TRACES)
def test_candidates_are_the_gaps_within_the_thresholds(trace):
    every = candidates(trace, ANY_GAP)
    assert every == [gap for gap in gaps(trace) if gap.size_bytes > 0]
    some = candidates(trace, Thresholds(least_bytes=8, least_us=10.0, most=3))
    assert some == [gap for gap in every if gap.size_bytes >= 8 and gap.duration_us >= 10][:3]


def test_a_cyclic_gap_is_used():
    builder = TraceBuilder()
    weight = builder.before(100)
    builder.op(duration_us=500.0, outputs=[50])
    builder.op(duration_us=500.0, reads=[1])
    builder.free(1)
    for _ in range(4):
        builder.op(duration_us=200.0)
    builder.op(reads=[weight])
    builder.op(duration_us=200.0)
    trace = builder.build()
    found = plan_under_budget(trace, LINK, 100, effort=0.1)
    assert found.timeline.overhead < 1e-9 and found.plan.swaps[0].cyclic


def layered(weights, layers, used, us=50.0):
    """Products with a weight each, some with a narrow output beside it; a backward that needs all, and `used` weights.

    `layers` are the bytes of a layer's outputs.
    """
    builder = TraceBuilder()
    weights, made = [builder.before(size) for size in weights], []
    x = builder.alloc(100)
    for weight, (wide, *narrow) in zip(weights, layers, strict=True):
        (x,) = builder.op(reads=[x, weight], outputs=[wide], duration_us=us)
        made.append(x)
        for size in narrow:
            made += builder.op(reads=[x], outputs=[size], duration_us=5.0)
    for storage, weight in zip(reversed(made), used, strict=False):
        builder.op(reads=[storage, weights[weight % len(weights)]], duration_us=us)
        builder.free(storage)
    return builder.build()


@st.composite
def networks(draw):
    count = draw(st.integers(3, 6))
    wide, narrow = st.sampled_from([100, 200, 400]), st.lists(st.sampled_from([1, 2, 10]), max_size=1)
    return layered(
        [draw(st.sampled_from([20, 50, 100])) for _ in range(count)],
        [[draw(wide), *draw(narrow)] for _ in range(count)],
        draw(st.lists(st.integers(0, 5), min_size=2 * count, max_size=2 * count)),
        draw(st.sampled_from([50.0, 100.0, 200.0])),
    )


RATES = st.sampled_from([200, 500, 1000])
LINKS = st.builds(lambda out, into: Machine("m", Link.affine(1, out), Link.affine(1, into)), RATES, RATES)


@given(networks(), LINKS, st.sampled_from([0.4, 0.5, 0.6, 0.7, 0.8]), st.sampled_from([0.0, 0.01]))
def test_no_plan_is_slower_than_the_published_methods(trace, machine, share, effort):
    budget = int(share * load_bytes(trace).max())
    try:
        published = find_policy("autoswap")(trace, machine, budget)
    except BudgetError:
        return
    took_us = Simulator(trace, machine).timeline(published.swaps).iteration_us
    found = plan_under_budget(trace, machine, budget, effort=effort)
    assert found.timeline.iteration_us <= took_us * (1 + 1e-9)
    assert check_plan(trace, found.plan) is None


def test_the_search_itself_begins_with_what_straddles_the_peak():
    trace = layered([50, 50, 50, 50, 20], [[200], [400, 10], [100, 2], [200], [400]], [0, 1, 4, 2, 0, 1, 4])
    search = Search.of(trace, LINK, ANY_GAP)
    budget = int(load_bytes(trace).max()) * 6 // 10
    published = find_policy("autoswap")(trace, LINK, budget)
    took_us = search.simulator.timeline(published.swaps).iteration_us
    assert search.run(budget, 0, 0).iteration_us <= took_us * (1 + 1e-9)

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from memfit.baselines.policies import POLICIES
from memfit.errors import BudgetError
from memfit.ir import Category
from memfit.machine import Link, Machine
from memfit.planning.autoswap import plan_under_budget, smallest_budget
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import RELAXED, Moves, time_bound
from memfit.simulate import load_bytes, simulate
from planning.joint.remade import Judge
from swap_builder import MACHINES
from trace_builder import TraceBuilder, traces

SIZES = st.integers(0, 40)
SLACK = 1e-3  # of the bound, and of a microsecond: the solver's last digits
QUICK = [name for name in POLICIES if name not in ("none", "swap-advisor")]


@st.composite
def budgets(draw, trace):
    """A budget in which not everything fits, and which no swaps or only some meet."""
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    return draw(st.integers(max(1, smallest_budget(trace)[0] - 2), peak - 1))


def is_below(us, bound):
    return us < bound - SLACK * max(1.0, bound)


def with_short_ops(trace):
    """Return the trace with ops of at most 10 us: they hide few copies, and the solver's digits are finer."""
    return replace(trace, ops=tuple(replace(op, duration_us=op.duration_us / 1e5) for op in trace.ops))


@given(traces(sizes=SIZES).map(with_short_ops), MACHINES, st.data())
def test_no_plan_of_swaps_is_below_the_bound_of_swaps(trace, machine, data):
    budget = data.draw(budgets(trace))
    bounds = [time_bound(trace, machine, budget, moves=Moves.SWAP, clean_copies=clean) for clean in (True, False)]
    assert not is_below(bounds[1].added_us, bounds[0].added_us)
    for name in data.draw(st.lists(st.sampled_from(QUICK), min_size=3, max_size=3, unique=True)):
        try:
            plan = POLICIES[name](trace, machine, budget)
        except BudgetError:
            continue
        timeline = simulate(trace, machine, plan)
        assert all(not is_below(timeline.iteration_us - timeline.compute_us, b.added_us) for b in bounds), name


@given(traces(sizes=SIZES, max_ops=9), MACHINES, st.data())
def test_no_choice_of_remakings_is_below_the_bounds_with_remakings(trace, machine, data):
    budget = data.draw(budgets(trace))
    least = Judge(trace).least_us(budget)
    for moves in (Moves.RECOMPUTE, Moves.JOINT):
        for depth in (0, 1, 3):
            assert not is_below(least, time_bound(trace, machine, budget, moves=moves, depth=depth).added_us)
        assert not is_below(least, time_bound(trace, machine, budget, moves=moves, whole_bytes=1).added_us)


@st.composite
def questions(draw):
    """A trace, often of ops that take no time or storages that hold nothing, and what is asked about it."""
    sizes, durations = st.sampled_from([0, 1, 7, 20, 33, 40]), st.sampled_from([0.0, 1.0, 2.5, 1000.0])
    trace = draw(traces(sizes=sizes, durations=durations, max_ops=9))
    moves, depth = draw(st.sampled_from([Moves.RECOMPUTE, Moves.JOINT])), draw(st.sampled_from([0, 1, 3]))
    return trace, draw(MACHINES), draw(budgets(trace)), moves, depth


def held_at_the_peak(us):
    """A storage of 33 bytes is held during the peak, two bytes over a budget of 107, and never used again."""
    builder = TraceBuilder(pinned_bytes=5)
    nothing, read, unread = builder.before(0), builder.before(11), builder.before(40)
    (early,) = builder.op("aten::mm", outputs=[7], duration_us=us)
    builder.free(nothing)
    data = builder.alloc(11)
    empty, held = builder.op("aten::mm", reads=[read], outputs=[0, 33], duration_us=us)
    builder.free(empty)
    builder.free(unread, early, data, held, *builder.op("aten::mm", outputs=[0, 2], duration_us=us))
    builder.op("aten::mm", duration_us=us)
    builder.free(read)
    for _ in range(4):
        builder.op("aten::mm", duration_us=us)
    return builder.build()


UNIT_LINKS = Machine("m", Link.affine(0.0, 1000.0), Link.affine(0.0, 1000.0))


def check_every_choice(question):
    trace, machine, budget, moves, depth = question
    least = Judge(trace).least_us(budget)
    assert not is_below(least, time_bound(trace, machine, budget, moves=moves, depth=depth).added_us)


@settings(max_examples=40)
@example((held_at_the_peak(0.0), UNIT_LINKS, 107, Moves.JOINT, 0))
@example((held_at_the_peak(1.0), UNIT_LINKS, 107, Moves.RECOMPUTE, 1))
@given(questions())
def test_the_bound_of_a_degenerate_trace_is_above_no_choice_either(question):
    check_every_choice(question)


def test_what_is_held_and_not_used_again_is_dropped_for_nothing():
    for us in (0.0, 1.0):
        assert time_bound(held_at_the_peak(us), UNIT_LINKS, 107, moves=Moves.RECOMPUTE).added_us == 0.0


@pytest.mark.slow
@settings(max_examples=20_000, suppress_health_check=list(HealthCheck))
@given(questions())
def test_the_bounds_of_many_traces_are_above_no_choice(question):
    check_every_choice(question)


def shared(*, reads_one=False):
    """Two storages from a dear one that is gone, and two more from these; all are read again, the last one first.

    With `reads_one` there is another one that is made from the first of them, and is read again right after the last.
    """
    builder = TraceBuilder()
    weight = builder.before(1)
    (dear,) = builder.op("aten::mm", reads=[weight], outputs=[10], duration_us=100.0)
    v, w = (builder.op("aten::relu", reads=[dear], outputs=[10])[0] for _ in range(2))
    builder.free(dear)
    (y,) = builder.op("aten::add", reads=[v, w], outputs=[10])
    (x,) = builder.op("aten::relu", reads=[y], outputs=[10])
    others = builder.op("aten::relu", reads=[v], outputs=[10]) if reads_one else []
    (large,) = builder.op("aten::mm", reads=[weight], outputs=[80])
    builder.free(large)
    for storage in (x, *others, v, w, y):
        builder.op("aten::mm", reads=[storage])
        builder.op("aten::mm", reads=[weight])
    return builder.build()


@pytest.mark.long
@pytest.mark.parametrize("reads_one", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_what_one_re_run_makes_for_several_at_once_is_paid_for_once(depth, reads_one):
    slow = Machine("slow", *(Link.of_bandwidth(1e-9, latency_us=0.0) for _ in range(2)))
    trace = shared(reads_one=reads_one)
    for moves in (Moves.RECOMPUTE, Moves.JOINT):
        plan = plan_jointly(trace, slow, 81, moves=moves)
        assert plan.added_us == pytest.approx(104 + reads_one)
        for bound in (time_bound(trace, slow, 81, moves=moves, depth=depth), plan.bound):
            assert bound.added_us > 100 and not is_below(plan.added_us, bound.added_us)


@st.composite
def nets(draw):
    """Ops of one or two outputs, some of which die at once; then a large one; then all is read, in any order."""
    builder = TraceBuilder()
    weight, alive = builder.before(1), []
    for _ in range(draw(st.integers(3, 8))):
        reads = draw(st.lists(st.sampled_from(alive), min_size=1, max_size=2, unique=True)) if alive else [weight]
        sizes = draw(st.lists(st.sampled_from([20, 40, 60]), min_size=1, max_size=2))
        alive += builder.op(
            "aten::mm", reads=reads, outputs=sizes, duration_us=draw(st.sampled_from([1.0, 10.0, 100.0]))
        )
        if len(alive) > 1 and draw(st.booleans()):
            builder.free(alive.pop(draw(st.integers(0, len(alive) - 1))))
    builder.free(*builder.op("aten::mm", reads=[weight], outputs=[draw(st.sampled_from([100, 200]))]))
    for storage in draw(st.permutations(alive)) if draw(st.booleans()) else reversed(alive):
        builder.op("aten::mm", reads=[storage], duration_us=10.0)
        builder.free(storage)
    return builder.build()


@pytest.mark.long
@given(
    nets(), MACHINES, st.floats(0.5, 0.98), st.sampled_from([Moves.RECOMPUTE, Moves.JOINT]), st.sampled_from([0, 1, 3])
)
def test_no_plan_that_makes_again_in_rows_is_below_the_bound(trace, machine, share, moves, depth):
    budget = int(share * int(load_bytes(trace).max()))
    try:
        plan = plan_jointly(trace, machine, budget, moves=moves, effort=0.05)
    except BudgetError:
        return
    for whole_bytes in (None, 1, 40):
        bound = time_bound(trace, machine, budget, moves=moves, depth=depth, whole_bytes=whole_bytes)
        assert not is_below(plan.added_us, bound.added_us)


@given(traces(sizes=SIZES).map(with_short_ops), MACHINES, st.data())
def test_more_moves_never_raise_the_bound(trace, machine, data):
    budget = data.draw(budgets(trace))
    found = {moves: time_bound(trace, machine, budget, moves=moves).added_us for moves in Moves}
    assert not is_below(min(found[Moves.SWAP], found[Moves.RECOMPUTE]), found[Moves.JOINT])


@given(traces(sizes=SIZES, alignments=st.just(1)).map(with_short_ops), MACHINES, st.data())
def test_more_bytes_and_fewer_segments_never_raise_the_bound(trace, machine, data):
    """Storages hold just what is copied of them here: one that holds more makes all bytes that wait look faster."""
    budget = data.draw(budgets(trace))
    bound = time_bound(trace, machine, budget).added_us
    more = time_bound(trace, machine, budget + data.draw(st.integers(0, 40))).added_us
    assert not is_below(bound, more)
    coarse = time_bound(trace, machine, budget, segments=3).added_us
    assert not is_below(bound, coarse)


@given(traces(sizes=SIZES, alignments=st.just(1)).map(with_short_ops), MACHINES, st.data())
def test_gaps_that_cost_nothing_never_raise_the_bound(trace, machine, data):
    budget = data.draw(budgets(trace))
    fewer = time_bound(trace, machine, budget, least_bytes=data.draw(st.integers(2, 40))).added_us
    assert not is_below(time_bound(trace, machine, budget).added_us, fewer)


def small_and_large():
    """Two storages leave while another one is there; only the large one returns, and its bytes are all copied."""
    builder = TraceBuilder(alignment=8)
    (large, small) = builder.op(outputs=[16, 1], duration_us=0.0)
    builder.op(duration_us=100.0)
    builder.free(*builder.op(outputs=[24], duration_us=0.0))
    builder.op(reads=[large], duration_us=0.0)
    builder.op(duration_us=0.0)
    builder.free(large, small)
    return builder.build()


def test_bytes_return_no_faster_than_the_fastest_copy_in():
    trace = small_and_large()
    assert int(load_bytes(trace).max()) == 48
    bound = time_bound(trace, MACHINE, 24, moves=Moves.SWAP)
    assert bound.added_us == pytest.approx(16, rel=1e-3)


def test_ops_that_take_no_time_have_a_bound_like_others():
    builder = TraceBuilder()
    weight = builder.before(16)
    (kept,) = builder.op(outputs=[21], duration_us=0.0)
    builder.op(scratch=[5], duration_us=0.0)
    builder.free(weight, kept)
    for _ in range(4):
        builder.op(duration_us=0.0)
    machine = Machine("m", Link.affine(0.0, 1.0), Link.affine(0.0, 1.0))
    assert time_bound(builder.build(), machine, 37, moves=Moves.SWAP).is_feasible


@given(traces(sizes=SIZES), MACHINES)
def test_what_swapping_cannot_reach_is_infeasible(trace, machine):
    least = smallest_budget(trace)[0]
    assume(least > 1)
    assert not time_bound(trace, machine, least - 1, moves=Moves.SWAP).is_feasible
    assert time_bound(trace, machine, least, moves=Moves.SWAP).is_feasible


@given(traces(sizes=SIZES), MACHINES, st.data())
def test_shares_are_parts_of_one(trace, machine, data):
    bound = time_bound(trace, machine, data.draw(budgets(trace)))
    for share in bound.shares:
        assert min(share.keep, share.swap, share.recompute) >= 0 and max(share.swap, share.recompute) <= 1
    assert all(0 < rerun.times <= 1 and rerun.op < rerun.before for rerun in bound.reruns)
    assert bound.added_us <= bound.reached_us


LINK = Link.affine(0.0, 1000.0)  # 1 us a byte
MACHINE = Machine("m", LINK, LINK)


def valley(mm_us=0.0):
    """x of 64 bytes is idle while 32 others come and go; a budget of 80 lacks 16 of the bytes."""
    builder = TraceBuilder()
    weight = builder.before(0)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64], duration_us=mm_us)
    builder.op("aten::sum", duration_us=0.0, outputs=[32])
    builder.free(x + 1)
    builder.op("aten::sum", reads=[x], duration_us=10.0)
    builder.free(x)
    return builder.build()


def test_a_part_of_a_storage_is_swapped_and_only_that_is_waited_for():
    bound = time_bound(valley(), MACHINE, 80, moves=Moves.SWAP)
    assert bound.added_us == pytest.approx(32, rel=1e-3)  # 16 bytes out and in, beside no op
    assert bound.overhead == pytest.approx(3.2, rel=1e-3)
    (share,) = (share for share in bound.shares if share.gap.size_bytes == 64)
    assert share.swap == pytest.approx(0.25, rel=1e-3) and share.keep == pytest.approx(0.75, rel=1e-3)


def test_a_part_is_made_again_where_that_costs_less():
    bound = time_bound(valley(mm_us=4.0), MACHINE, 80, moves=Moves.RECOMPUTE)
    assert bound.added_us == pytest.approx(1, rel=1e-3)  # a quarter of the op
    ((op, before, times),) = ((rerun.op, rerun.before, rerun.times) for rerun in bound.reruns)
    assert (op, before) == (0, 2) and times == pytest.approx(0.25, rel=1e-3)


def test_a_budget_that_holds_everything_costs_nothing():
    bound = time_bound(valley(), MACHINE, 96)
    assert (bound.added_us, bound.shares, bound.overhead) == (0.0, (), 0.0) and bound.is_feasible
    assert bound.relaxed is RELAXED


def frozen():
    """A weight that nothing writes is idle at the peak."""
    builder = TraceBuilder()
    weight = builder.before(64, Category.PARAMETER)
    builder.op("aten::mm", reads=[weight])
    (x,) = builder.op("aten::sum", outputs=[32])
    builder.free(x)
    builder.op("aten::mm", reads=[weight], duration_us=10.0)
    return builder.build()


def test_what_is_never_written_leaves_without_a_copy():
    clean, copied = (
        time_bound(frozen(), MACHINE, 80, moves=Moves.SWAP, clean_copies=clean).added_us for clean in (True, False)
    )
    assert clean < copied - 1


def test_both_directions_slow_each_other():
    trace, plans = frozen(), []
    for factor in (1.0, 0.5):
        machine = replace(MACHINE, both_factor=factor)
        plans.append(time_bound(trace, machine, 64, moves=Moves.SWAP, clean_copies=False).added_us)
    assert plans[0] <= plans[1]


def test_the_planner_reaches_the_bound_where_whole_storages_leave():
    trace = valley()
    plan = plan_under_budget(trace, MACHINE, 64)
    bound = time_bound(trace, MACHINE, 64, moves=Moves.SWAP)
    assert bound.added_us <= plan.timeline.iteration_us - plan.timeline.compute_us + 1e-6
    quarter = time_bound(trace, MACHINE, 32, moves=Moves.SWAP)
    assert not quarter.is_feasible  # x alone is larger


def made_in(scratch):
    """x is idle at the peak, and y is there when x is made again."""
    builder = TraceBuilder()
    weight = builder.before(0)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64], scratch=[scratch])
    (y,) = builder.op("aten::sum", outputs=[80])
    (z,) = builder.op("aten::sum", outputs=[64])
    builder.free(z)
    builder.op("aten::sum", reads=[x, y])
    return builder.build()


def test_what_runs_again_needs_room():
    roomy, tight = (time_bound(made_in(scratch), MACHINE, 170, moves=Moves.RECOMPUTE) for scratch in (0, 100))
    assert roomy.is_feasible and not tight.is_feasible

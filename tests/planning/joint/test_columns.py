import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.ir import align_up
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates, end_of
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import added_us, arrange
from memfit.planning.joint.columns import KEPT, PASSING, REMADE, SWAPPED, Hints, JointColumns, Waits
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.simulate import load_bytes, sum_of_spans
from planning.joint.test_transformed import layers
from trace_builder import TraceBuilder, traces

FAST = Machine("fast", Link.affine(0.0, 1e-6), Link.affine(0.0, 1e-6))
MACHINE = Machine("both", Link.affine(1.0, 10.0), Link.affine(1.0, 10.0), 0.5)
SLOW = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))


def columns_of(trace, again_us=None):
    return JointColumns.of(Values.of(corrected(trace), again_us), candidates(trace, ANY_GAP))


def carried_out(columns, found):
    """The remakings of a choice, and the trace in which they are done."""
    remade = [gap for gap, mode in zip(columns.gaps, found.modes, strict=True) if mode in (REMADE, PASSING)]
    passing = [gap for gap, mode in zip(columns.gaps, found.modes, strict=True) if mode == PASSING]
    recomputes = arrange(columns.values, remade, passing)
    return remade, recomputes, with_recomputes(columns.values, recomputes)


@pytest.mark.long
@given(traces(max_ops=16), st.data())
def test_the_time_and_the_bytes_of_remakings_are_those_of_the_trace_with_them(trace, data):
    columns = columns_of(trace)
    modes = [data.draw(st.sampled_from((KEPT, REMADE, PASSING))) if us < 1e18 else KEPT for us in columns.remaking_us]
    found = columns.search(modes, SLOW, 0, effort=0, may_swap=False)
    remade, recomputes, made = carried_out(columns, found)
    if found.over_bytes == float("inf"):  # something is lost
        assert len(recomputes) < len(remade)
        return
    assert len(recomputes) == len(remade)
    assert found.again_us == pytest.approx(added_us(columns.values, recomputes), abs=1e-6)
    assert found.worst_bytes == load_bytes(made.trace).max()
    returns = {(gap.storage, gap.after): op for gap, op in zip(columns.gaps, found.returns, strict=True)}
    assert all(returns[one.storage, one.after] == one.before for one in recomputes)


def peak(count=4):
    return int(load_bytes(layers(count)[0]).max())


def in_modes(columns, mode, when):
    return [mode if when(gap) else KEPT for gap in columns.gaps]


def test_a_search_keeps_to_the_budget_by_remakings_alone():
    columns = columns_of(layers(4)[0])
    found = columns.search([KEPT] * len(columns.gaps), SLOW, 310, effort=0.05, may_swap=False)
    _, _, made = carried_out(columns, found)
    assert found.over_bytes == 0 and found.worst_bytes <= 310 < peak()
    assert load_bytes(made.trace).max() == found.worst_bytes


def test_the_same_search_finds_the_same_and_more_effort_looks_at_more():
    columns = columns_of(layers(6)[0])
    nothing = [KEPT] * len(columns.gaps)
    once, twice, longer = (columns.search(nothing, FAST, 330, effort=effort, seed=3) for effort in (0.02, 0.02, 0.06))
    assert once.modes.tolist() == twice.modes.tolist() and once.steps == twice.steps
    assert longer.evaluations > once.evaluations > 0


def test_what_is_not_needed_is_left_out():
    columns = columns_of(layers(4)[0])
    start = [REMADE if us < 1e18 else KEPT for us in columns.remaking_us]
    found = columns.search(start, SLOW, peak() - 8, effort=0, may_swap=False)
    assert found.over_bytes == 0
    assert 0 < sum(mode == REMADE for mode in found.modes) < start.count(REMADE)


def test_a_search_that_mends_first_needs_less_effort():
    columns = columns_of(layers(12)[0])
    nothing = [KEPT] * len(columns.gaps)
    plain, mended = (
        columns.search(nothing, SLOW, 310, effort=3e-5, may_swap=False, mends=mends) for mends in (False, True)
    )
    assert mended.over_bytes == 0 < plain.over_bytes


def test_hints_say_which_way_to_be_away():
    columns = columns_of(layers(8)[0])
    nothing, count = [KEPT] * len(columns.gaps), len(columns.gaps)
    swapped = []
    for remake in (0.0, 1.0):
        hints = Hints(np.ones(count), np.full(count, remake))
        found = columns.search(nothing, FAST, 330, effort=3e-5, hints=hints, mends=True)
        swapped.append(sum(mode == SWAPPED for mode in found.modes))
    assert swapped[0] > swapped[1]


def test_a_swap_frees_bytes_only_where_its_copies_have_the_time_and_waits_where_it_is_forced():
    columns = columns_of(layers(4)[0])
    largest = max(columns.gaps, key=lambda gap: (gap.size_bytes, gap.duration_us))
    swapped, forced = (in_modes(columns, mode, lambda gap: gap is largest) for mode in (SWAPPED, 6))
    over = {
        name: columns.search(modes, link, 0, effort=0)
        for name, modes, link in (
            ("none", [KEPT] * len(columns.gaps), FAST),
            ("fast", swapped, FAST),
            ("slow", swapped, SLOW),
            ("forced", forced, SLOW),
        )
    }
    timed = columns.search(swapped, SLOW, 0, effort=0, waits=Waits.TIMED)
    assert timed.wait_us == pytest.approx(over["forced"].wait_us, rel=1e-3)
    assert timed.over_bytes <= over["fast"].over_bytes
    assert over["fast"].over_bytes < over["slow"].over_bytes == over["none"].over_bytes
    assert over["forced"].over_bytes <= over["fast"].over_bytes
    assert over["forced"].wait_us == pytest.approx(2 * SLOW.out.copy_us(largest.size_bytes), rel=1e-3)
    assert over["slow"].wait_us == over["fast"].wait_us == 0


@pytest.mark.long
@given(traces(max_ops=16), st.data())
def test_where_waits_are_timed_all_that_is_swapped_and_of_use_is_away(trace, data):
    columns = columns_of(trace)
    swapped = [data.draw(st.sampled_from((KEPT, SWAPPED))) for _ in columns.gaps]
    chosen = [gap for gap, mode in zip(columns.gaps, swapped, strict=True) if mode == SWAPPED]
    spans = [(gap.after + 1, end_of(trace, gap), align_up(gap.size_bytes, trace.alignment)) for gap in chosen]
    left = load_bytes(trace) - sum_of_spans(spans, len(trace.ops))
    needed = int(left.max())
    budget = needed - data.draw(st.integers(1, max(1, needed)))
    found = columns.search(swapped, MACHINE, budget, effort=0, waits=Waits.TIMED)
    assert found.worst_bytes == needed
    assert found.over_bytes == np.maximum(left - budget, 0).sum() > 0
    assert all(mode in (KEPT, was) for mode, was in zip(found.modes.tolist(), swapped, strict=True))
    assert found.again_us == 0 and found.wait_us >= 0
    if not chosen:
        assert found.wait_us == 0


def test_what_a_remaking_needs_does_not_leave_again_without_need():
    trace, saved = layers(4)
    columns = columns_of(trace)
    swapped, remade = (next(gap for gap in columns.gaps if gap.storage == saved[n]) for n in (0, 1))
    modes = [SWAPPED if gap is swapped else REMADE if gap is remade else KEPT for gap in columns.gaps]
    link = Link.affine(0.0, 0.4)
    found = columns.search(modes, Machine("apt", link, link), 308, effort=0, waits=Waits.TIMED)
    assert found.modes.tolist() == modes and found.over_bytes == 0 < found.again_us
    assert found.wait_us == 0


def test_a_copy_runs_beside_those_of_the_ops_that_run_again_which_leave_it_room():
    builder = TraceBuilder()
    weight = builder.before(8)
    (swapped,) = builder.op("aten::embedding", reads=[weight], outputs=[64])
    (x,) = builder.op("aten::embedding", reads=[weight], outputs=[8])
    (y,) = builder.op("aten::conv2d", reads=[x, weight], outputs=[8], scratch=[190], duration_us=1.0)
    (remade,) = builder.op("aten::batch_norm", reads=[y], outputs=[64], duration_us=50.0)
    builder.free(y)
    builder.op("aten::sum", reads=[remade])
    builder.op("aten::mm", reads=[x], outputs=[8], scratch=[200], duration_us=100.0)
    builder.op("aten::mm", reads=[remade, weight], outputs=[8], duration_us=1.0)
    builder.op("aten::mm", reads=[swapped], outputs=[8], duration_us=1.0)
    columns = columns_of(builder.build())
    of = {swapped: SWAPPED, remade: REMADE}
    modes = [of.get(gap.storage, KEPT) if gap.duration_us >= 100 else KEPT for gap in columns.gaps]
    link = Link.affine(0.0, 500.0)
    found = columns.search(modes, Machine("apt", link, link), 230, effort=0, waits=Waits.TIMED)
    assert found.modes.tolist() == modes and found.over_bytes == 0 and found.again_us == 51
    assert found.wait_us == pytest.approx(31)  # of the copy out, for the first convolution; the copy in makes none wait


@pytest.mark.parametrize("mode", [REMADE, 7])
def test_modes_that_may_not_be_are_refused(mode):
    columns = columns_of(layers(2)[0])
    number = next(n for n, us in enumerate(columns.remaking_us) if us > 1e18)
    modes = [mode if n == number else KEPT for n in range(len(columns.gaps))]
    with pytest.raises(ValueError):
        columns.search(modes, FAST, 300, effort=0)


def test_a_swap_is_refused_where_nothing_may_be_swapped():
    columns = columns_of(layers(2)[0])
    with pytest.raises(ValueError):
        columns.search([SWAPPED] * len(columns.gaps), FAST, 300, effort=0, may_swap=False)

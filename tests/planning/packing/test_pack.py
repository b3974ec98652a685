"""Packing against the validator, against all orders of small tables, and on real traces."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import BudgetError, InputError
from memfit.planning.lifetimes import live_bytes
from memfit.planning.packing import FREE, Lifetimes, lifetimes_of, pack, repeat
from memfit.validate import check_placements
from planning.packing.instances import brute_force, data_file, tables, tiling
from trace_builder import traces

PERIODS = st.one_of(st.none(), st.integers(1, 9))


def check(lifetimes, packing, **rules):
    assert (
        check_placements(
            lower=lifetimes.lower,
            upper=lifetimes.upper,
            size_bytes=lifetimes.size,
            offset_bytes=packing.offsets,
            slots=packing.slots,
            capacity_bytes=packing.footprint,
            fixed_bytes=lifetimes.offset,
            **rules,
        )
        is None
    )
    assert packing.footprint >= packing.lower_bound >= packing.peak_live


@given(st.data(), PERIODS, st.sampled_from([1, 4]))
def test_every_plan_keeps_its_promises(data, period, alignment):
    lifetimes = data.draw(tables(period=period, fixed=alignment == 1))
    packing = pack(lifetimes, alignment=alignment, period=period, effort=0.01)
    check(lifetimes, packing, alignment=alignment, period=period)


@given(tables(max_count=7))
def test_small_tables_are_packed_as_well_as_can_be_and_proven(lifetimes):
    packing = pack(lifetimes, alignment=1, effort=5.0)
    assert packing.footprint == brute_force(lifetimes)
    assert packing.proven


@given(st.data(), st.integers(2, 9))
def test_small_tables_in_circular_time_are_packed_as_well_as_can_be(data, period):
    lifetimes = data.draw(tables(max_count=4, period=period))
    packing = pack(lifetimes, alignment=1, period=period, effort=5.0)
    slots = int(packing.slots[lifetimes.size > 0].sum())
    if slots <= 7:
        assert packing.footprint == brute_force(lifetimes, period)
        assert packing.proven


@given(st.data(), st.integers(12, 16))
def test_small_tables_in_circular_time_with_fixed_placements_are_packed_as_well_as_can_be(data, period):
    lifetimes = data.draw(tables(max_count=7, period=period, fixed=True))  # none outlives the period
    packing = pack(lifetimes, alignment=1, period=period, effort=5.0)
    assert packing.footprint == brute_force(lifetimes, period)
    assert packing.proven


@given(tables(max_count=7, fixed=True))
def test_small_tables_with_fixed_placements_are_packed_as_well_as_can_be(lifetimes):
    packing = pack(lifetimes, alignment=1, effort=5.0)
    assert packing.footprint == brute_force(lifetimes)
    assert packing.proven


def turned(lifetimes, by, period):
    """The same plan begun at another time of a period as long as it."""
    lower = (lifetimes.lower + by) % period
    return Lifetimes(lower, lower + lifetimes.upper - lifetimes.lower, lifetimes.size)


@pytest.mark.parametrize("period", [None, 1000])
@pytest.mark.parametrize(("count", "seed"), [(100, 1), (250, 2)])
def test_what_fills_a_rectangle_is_packed_into_it_in_search(count, seed, period):
    lifetimes = tiling(count, seed)
    if period:
        lifetimes = turned(lifetimes, 300, period)
    assert pack(lifetimes, alignment=1, period=period, effort=0.0).footprint > 100_000
    packing = pack(lifetimes, alignment=1, period=period, effort=20.0)
    assert packing.footprint == 100_000
    assert packing.proven and packing.method != "greedy"


@pytest.mark.parametrize("count", [3, 250, 600])
@pytest.mark.parametrize("period", [None, 1000])
def test_the_plan_does_not_depend_on_the_threads(count, period):
    lifetimes = tiling(count, seed=2)
    if period:
        lifetimes = turned(lifetimes, 300, period)
    runs = [pack(lifetimes, effort=0.2, alignment=1, period=period, seed=5, threads=threads) for threads in (1, 2, 4)]
    first, *others = runs
    assert all((run.offsets == first.offsets).all() and run.method == first.method for run in others)


def test_better_plans_are_told_as_they_are_found():
    told = []
    packing = pack(tiling(250, 2), alignment=1, effort=20.0, progress=lambda *what: told.append(what))
    footprints = [footprint for _, footprint in told]
    assert len(told) > 2
    assert footprints == sorted(set(footprints), reverse=True)
    assert footprints[-1] == packing.footprint
    assert all(a <= b for (a, _), (b, _) in zip(told, told[1:], strict=False))
    assert told[0][0] >= 0 and told[-1][0] <= packing.seconds


def test_a_capacity_ends_the_search_at_the_first_plan_that_fits_it():
    lifetimes, told, capacity = tiling(250, 2), [], 110_000
    roomy = pack(lifetimes, alignment=1, capacity=capacity, effort=20.0, progress=lambda *what: told.append(what[1]))
    assert 100_000 < roomy.footprint <= capacity
    assert told[-1] == roomy.footprint and all(footprint > capacity for footprint in told[:-1])


def test_a_capacity_under_the_bound_is_refused_with_the_bound():
    with pytest.raises(BudgetError) as error:
        pack(Lifetimes.from_rows([(0, 2, 600), (1, 3, 600)]), capacity=1024, effort=0.1)
    assert error.value.required_bytes == 2048


def test_an_error_in_a_progress_callback_ends_the_packing():
    def fail(seconds, footprint):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        pack(tiling(50, seed=1), effort=0.1, progress=fail)


@pytest.mark.long
def test_counted_work_bounds_the_effort():
    begin = process_time()
    packing = pack(tiling(600, 1), alignment=1, effort=1.0, threads=1)
    assert not packing.proven
    assert process_time() - begin < 4.0  # about a second of most cores


def test_nothing_to_place_takes_no_bytes():
    packing = pack(Lifetimes.from_rows([]))
    assert (packing.footprint, packing.proven, len(packing.offsets)) == (0, True, 0)
    packing = pack(Lifetimes.from_rows([(0, 1, 0)]))
    assert (packing.footprint, packing.offsets.tolist(), packing.gap) == (0, [0], 0.0)


def test_sizes_are_rounded_up_to_the_alignment():
    packing = pack(Lifetimes.from_rows([(0, 2, 1), (1, 3, 513)]))
    assert packing.footprint == 3 * 512
    assert (packing.offsets % 512 == 0).all()


def test_a_lifetime_longer_than_the_period_gets_slots_in_turn():
    packing = pack(Lifetimes.from_rows([(1, 8, 10), (0, 1, 5)]), alignment=1, period=3)
    assert packing.slots.tolist() == [3, 1]
    assert packing.footprint == 35


def test_repeating_the_iteration_frees_slots_where_no_instance_lives():
    once = Lifetimes.from_rows([(2, 7, 10), (3, 4, 10)])
    assert pack(once, alignment=1, period=4).footprint == 30
    assert pack(repeat(once, 4, 2), alignment=1, period=8).footprint == 20
    once = Lifetimes.from_rows([(2, 7, 10), (0, 1, 3)])
    assert pack(once, alignment=1, period=4).footprint == 23


MALFORMED = [
    ([(2, 2, 1)], {}, "ends before"),
    ([(0, 1, -1)], {}, "size"),
    ([(5, 6, 1)], {"period": 5}, "outside the period"),
    ([(0, 1, 2**60)] * 9, {}, "more than can be counted"),
    ([(0, 2**50, 1)], {"period": 1}, "too many periods"),
    ([(0, 1, 1)], {"alignment": 0}, "alignment"),
    ([(0, 1, 1)], {"period": 0}, "period"),
    ([(0, 1, 1)], {"effort": -1.0}, "effort"),
    ([(0, 1, 1)], {"effort": float("nan")}, "effort"),
]


@pytest.mark.parametrize(("rows", "rules", "says"), MALFORMED)
def test_malformed_input_is_refused(rows, rules, says):
    with pytest.raises(InputError, match=says):
        pack(Lifetimes.from_rows(rows), **rules)


@pytest.mark.parametrize(
    ("offsets", "rules", "says"),
    [
        ([0, 0], {}, "overlap"),
        ([3, FREE], {"alignment": 2}, "alignment"),
        ([-2, FREE], {}, "offset"),
        ([0, FREE], {"period": 2}, "outlives"),
    ],
)
def test_fixed_placements_that_cannot_be_kept_are_refused(offsets, rules, says):
    column = np.array([0, 0], dtype=np.int64)
    lifetimes = Lifetimes(column, column + 3, column + 4, np.array(offsets, dtype=np.int64))
    with pytest.raises(InputError, match=says):
        pack(lifetimes, **{"alignment": 1, **rules})


def test_columns_must_be_integers_of_one_length():
    column = np.arange(3)
    with pytest.raises(InputError, match="length"):
        Lifetimes(column, column + 1, column[:2])
    with pytest.raises(InputError, match="integers"):
        Lifetimes(column, column + 1, column * 0.5)


REAL = ["G_1", "S_1", "resnet50", "hist_bert_base", "hist_iree_mobilebert", "hist_pangu_13B"]
SNAPSHOTS = ["lm_ctx128_fullstep", "lm_medium_512_training", "vision_small"]


@pytest.mark.parametrize("name", [*(f"packing/{n}" for n in REAL), *(f"snapshots/{n}" for n in SNAPSHOTS)])
def test_greedy_plans_alone_are_close_to_the_bound_of_real_traces(name):
    packing = pack(data_file(f"{name}.csv"), alignment=1, effort=0.0)
    assert packing.method == "greedy" and packing.gap <= 0.006


@pytest.mark.parametrize("name", "ABCEF")
def test_hard_instances_are_packed_at_their_bound(name):
    packing = pack(data_file(f"packing/challenging_{name}.cap1048576.csv"), alignment=1, effort=10.0)
    assert packing.gap == 0 and packing.proven


def test_the_hardest_instance_fits_the_capacity_it_comes_with():
    lifetimes = data_file("packing/challenging_D.cap1048576.csv")
    assert pack(lifetimes, alignment=1, capacity=1_048_576, effort=5.0).footprint <= 1_048_576


def test_what_the_exact_search_cannot_hold_is_packed_at_its_bound_around_its_largest():
    packing = pack(data_file("packing/S_1.csv"), alignment=1, effort=10.0)
    assert packing.gap == 0 and packing.method == "exact"


@given(traces())
def test_the_bound_of_a_trace_is_its_peak_of_live_bytes(trace):
    packing = pack(lifetimes_of(trace), alignment=trace.alignment, effort=0.01)
    assert packing.peak_live == live_bytes(trace, aligned=True).max()

"""Addresses of swapped storages, against a walk over every moment."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import BudgetError
from memfit.ir import Category, Swap, align_up
from memfit.machine import profile
from memfit.planning.autoswap import plan_with_addresses, smallest_budget, stays_of_trace, with_footprint
from memfit.planning.autoswap.place import TickClock
from memfit.planning.stays import place_stays
from memfit.simulate import load_bytes, planned_bytes
from memfit.units import format_bytes
from memfit.validate_plan import check_plan
from swap_builder import MACHINES, SIZES, plan_of, plans
from trace_builder import TraceBuilder, traces


class Stay(NamedTuple):
    storage: int
    begin: int
    end: int
    size: int


def stays_by_row(trace, swaps):
    found = stays_of_trace(trace, swaps)
    return list(map(Stay, *(column.tolist() for column in (found.owner, found.lower, found.upper, found.size))))


@pytest.mark.parametrize(("was_there", "footprint"), [(False, 20), (True, 40)])
def test_gradients_are_gone_when_the_next_iteration_begins_if_none_was_there_when_this_one_did(was_there, footprint):
    builder = TraceBuilder()
    if was_there:
        builder.before(10, Category.GRADIENT)
    (x,) = builder.op(outputs=[20])
    builder.op(reads=[x])
    builder.free(x)
    builder.op(outputs=[10], category=Category.GRADIENT)
    trace = builder.build()
    assert with_footprint(trace, plan_of(trace)).footprint_bytes == footprint


@given(plans())
def test_a_storage_is_placed_at_every_op_that_uses_it(trace_and_plan):
    trace, plan = trace_and_plan
    clock, found = TickClock.of(trace), stays_by_row(trace, plan.swaps)
    names = {stay.storage for stay in found}
    for index, op in enumerate(trace.ops):
        for storage in {*op.reads, *op.writes}:
            if storage not in names:  # goes on from the iteration before under another number
                assert trace.storages[storage].born_before
                continue
            if trace.storages[storage].alloc_tick >= op.first_tick:
                continue
            at = clock.at_op(index)
            its = [stay for stay in found if stay.storage == storage]
            assert any(
                stay.begin <= at + shift < stay.end for stay in its for shift in (-clock.period, 0, clock.period)
            )


@pytest.mark.long
@given(plans())
def test_bytes_of_stays_are_those_of_the_plan(trace_and_plan):
    trace, plan = trace_and_plan
    clock, held = TickClock.of(trace), planned_bytes(trace, plan.swaps) - trace.pinned_bytes
    found = stays_by_row(trace, plan.swaps)
    if any(storage.born_before != trace.outlives(storage) for storage in trace.storages):
        return  # one that crosses the end is one life to the stays and two to the trace
    for index in range(len(trace.ops)):
        # What is allocated before the first op counts to it.
        begin = clock.at_op(index) if index else 0
        end = clock.at_op(index + 1) if index + 1 < len(trace.ops) else clock.period
        most = 0
        for time in range(begin, end):
            most = max(most, sum(
                align_up(trace.storages[s.storage].size_bytes, trace.alignment) for s in found
                if any(s.begin <= time + shift < s.end for shift in (-clock.period, 0, clock.period))
            ))  # fmt: skip
        assert most <= held[index]


@given(plans())
def test_what_is_there_at_once_lies_side_by_side(trace_and_plan):
    trace, plan = trace_and_plan
    found, period = stays_by_row(trace, plan.swaps), TickClock.of(trace).period
    packing = place_stays(stays_of_trace(trace, plan.swaps), alignment=trace.alignment, effort=0.01).packing
    of_slot = np.repeat(np.arange(len(found)), packing.slots).tolist()
    placed = [(found[row], offset) for row, offset in zip(of_slot, packing.offsets.tolist(), strict=True)]
    short = [(stay, offset) for stay, offset in placed if stay.end - stay.begin <= period]
    for index, (a, a_offset) in enumerate(short):
        a_end = a_offset + align_up(a.size, trace.alignment)
        for b, b_offset in short[:index]:
            meet = any(a.begin < b.end + s and b.begin + s < a.end for s in (-period, 0, period))
            b_end = b_offset + align_up(b.size, trace.alignment)
            assert not meet or a_end <= b_offset or b_end <= a_offset or a_end == a_offset or b_end == b_offset
        assert a_end <= packing.footprint


@given(traces(sizes=SIZES), MACHINES, st.floats(0, 1))
def test_the_footprint_is_within_the_budget_or_it_is_refused(trace, machine, share):
    least, peak = smallest_budget(trace)[0], int(load_bytes(trace).max())
    budget = least + int(share * (peak - least))
    try:
        found = plan_with_addresses(trace, machine, budget, effort=0.04)
    except BudgetError as error:
        assert error.required_bytes > budget and f" {format_bytes(budget)} " in error.what
        assert error.required_bytes >= least
        return
    assert found.plan.footprint_bytes <= budget == found.plan.budget_bytes
    assert check_plan(trace, found.plan) is None


def test_a_swapped_storage_may_come_back_elsewhere():
    builder = TraceBuilder()
    weight = builder.before(10)
    builder.op(reads=[weight])
    (x,) = builder.op(outputs=[10])
    builder.op(reads=[x])
    builder.free(x)
    builder.op()
    builder.op(reads=[weight])
    trace = builder.build()
    plan = plan_of(trace, Swap(weight, 10, 0, 1, 3, 4, False))
    assert len(stays_of_trace(trace, plan.swaps)) == 2
    assert with_footprint(trace, plan).footprint_bytes == 10
    assert with_footprint(trace, replace(plan, swaps=())).footprint_bytes == 20


@given(plans())
def test_what_recurs_has_as_many_stays_as_absences(trace_and_plan):
    trace, plan = trace_and_plan
    found = stays_by_row(trace, plan.swaps)
    for index, storage in enumerate(trace.storages):
        absences = sum(swap.storage == index and swap.free_by < swap.in_start for swap in plan.swaps)
        if trace.recurs(storage) and absences == sum(swap.storage == index for swap in plan.swaps):
            assert sum(stay.storage == index for stay in found) == max(1, absences)


def test_the_error_names_the_budget_asked_for_and_not_a_lower_one_that_was_tried():
    builder = TraceBuilder()
    one, two, both = (builder.before(size) for size in (10, 10, 24))
    builder.op(writes=[one, both], outputs=[30, 25])
    builder.op(writes=[two, both], outputs=[12, 38], scratch=[5])
    budget = smallest_budget(builder.build())[0]
    with pytest.raises(BudgetError, match=f"^no addresses within {budget} B were found"):
        plan_with_addresses(builder.build(), profile("pcie3"), budget, effort=0.01)


def test_a_budget_without_a_plan_is_an_error():
    builder = TraceBuilder()
    builder.op(outputs=[10])
    with pytest.raises(BudgetError, match="cannot be met by swapping"):
        plan_with_addresses(builder.build(), profile("pcie3"), 5, effort=0.01)

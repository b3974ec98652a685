"""The figures of a report, against the trace's own."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from memfit.comparing.page import changes, live_by_category, owners, page_of
from memfit.errors import BudgetError
from memfit.machine import profile
from memfit.planning.lifetimes import peak_live
from memfit.simulate import load_bytes
from reporting.page_samples import MIB, iteration
from trace_builder import traces


@given(traces())
def test_categories_add_up_to_the_load_of_each_op(trace):
    total = np.zeros(len(trace.ops), dtype=np.int64) + sum(live_by_category(trace).values(), start=0)
    assert (total + trace.pinned_bytes == load_bytes(trace)).all()


@given(traces())
def test_owners_add_up_to_the_peak(trace):
    assert sum(row.size_bytes for row in owners(trace)) == peak_live(trace)[0]


@pytest.mark.parametrize("budget", [None, 28 * MIB])
def test_no_two_boxes_share_bytes_in_an_op(budget):
    trace = iteration()
    page = page_of(trace, profile("pcie4"), file="t", budget_bytes=budget, effort=0.1)
    boxes = page.boxes
    sizes = [trace.storages[storage].size_bytes for storage in boxes.storage]
    spans = list(zip(boxes.begin, boxes.end, boxes.offset, sizes, strict=True))
    assert all(0 <= begin < end <= len(trace.ops) for begin, end, _, _ in spans)
    assert max(offset + size for _, _, offset, size in spans) <= boxes.footprint_bytes <= (budget or 1 << 40)
    for (a, b, low, size), (c, d, other, others) in combinations(spans, 2):
        if max(a, c) + 1 < min(b, d):  # at the one op where one leaves and the other comes both are drawn
            assert low + size <= other or other + others <= low


def test_without_a_plan_there_are_no_lanes_and_the_next_command_asks_for_one():
    page = page_of(iteration(), profile("pcie4"), file="trace.json")
    assert page.plan is None and page.arena is None and page.lanes == () and page.what_if is None
    assert page.head.next_command == "memfit report trace.json --budget 60% -o report.html"


def test_a_curve_has_the_budgets_that_were_asked_for():
    page = page_of(iteration(), profile("pcie4"), file="t", points=4, effort=0.1)
    budgets, added = page.what_if.budgets, page.what_if.added
    assert budgets == sorted(budgets, reverse=True) and len(budgets) == 4
    assert added == sorted(added) and added[0] == 0


def test_a_budget_that_no_plan_meets_is_an_error():
    with pytest.raises(BudgetError):
        page_of(iteration(), profile("pcie4"), file="t", budget_bytes=MIB)


@given(traces(), traces())
def test_changes_add_up_to_that_of_the_peak(before, after):
    rows = changes("before", before, after).rows
    change = sum(row.after_bytes - row.before_bytes for row in rows)
    assert change == peak_live(after)[0] - peak_live(before)[0]
    sizes = [abs(row.after_bytes - row.before_bytes) for row in rows]
    assert sizes == sorted(sizes, reverse=True) and 0 not in sizes

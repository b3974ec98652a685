"""The figures of a report, against the trace's own."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from memfit.comparing.explaining.carried import carried_jointly
from memfit.comparing.explaining.storages import Why, explain_storages, reasons
from memfit.comparing.page import Asked, page_of
from memfit.comparing.page.peaks import changes, live_by_category, owners
from memfit.errors import BudgetError
from memfit.events import lifetimes_of_rows, lifetimes_of_trace
from memfit.ir import Category
from memfit.machine import profile
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.lifetimes import peak_live
from memfit.simulate import load_bytes
from reporting.page_samples import MIB, iteration
from trace_builder import TraceBuilder, traces


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
    page = page_of(trace, profile("pcie4"), file="t", budget_bytes=budget, asked=Asked(effort=0.1))
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
    page = page_of(iteration(), profile("pcie4"), file="t", asked=Asked(4, 0.1))
    budgets, added = page.what_if.budgets, page.what_if.added
    assert budgets == sorted(budgets, reverse=True) and len(budgets) == 4
    assert added == sorted(added) and added[0] == 0


def test_a_budget_that_no_plan_meets_is_an_error():
    with pytest.raises(BudgetError):
        page_of(iteration(), profile("pcie4"), file="t", budget_bytes=MIB)


@given(traces(), traces())
def test_changes_add_up_to_that_of_the_peak(before, after):
    found = changes("before", lifetimes_of_trace(before), lifetimes_of_trace(after))
    change = sum(row.after_bytes - row.before_bytes for row in found.rows)
    assert change == peak_live(after)[0] - peak_live(before)[0] == found.own_peak_bytes - found.peak_bytes
    assert (max(found.curve), max(found.own_curve)) == (found.peak_bytes, found.own_peak_bytes)
    sizes = [abs(row.after_bytes - row.before_bytes) for row in found.rows]
    assert sizes == sorted(sizes, reverse=True) and 0 not in sizes


def test_a_line_is_the_same_by_its_whole_path():
    rows = [("a", 0, 4, 100), ("b", 1, 3, 50)]
    there = lifetimes_of_rows(rows, ["/home/me/train.py:12", "/home/me/other/train.py:12"])
    here = lifetimes_of_rows(rows, ["train.py:12", "other/train.py:12"])
    assert changes("there", there, here).rows == []
    assert [row.source for row in changes("there", there, lifetimes_of_rows(rows[:1], ["train.py:12"])).rows] == [
        "/home/me/other/train.py:12"
    ]


def test_each_storage_has_its_gap_and_the_reason_that_explain_gives():
    trace = iteration()
    carried = carried_jointly(trace, profile("pcie4"), plan_jointly(trace, profile("pcie4"), 28 * MIB, effort=0.1))
    found = reasons(carried)
    explained = {each.tensor.storage: each.gaps for each in explain_storages(carried, "*").storages}
    assert found.keys() == {storage for storage, own in explained.items() if own}
    for storage, (gap, why) in found.items():
        (same,) = [each for each in explained[storage] if each.after.index == gap.after]
        assert same.why == why and same.duration_us == gap.duration_us
        leaves = any(each.decision != "kept" for each in explained[storage])
        assert (same.decision != "kept") == leaves
        assert leaves or gap.duration_us == max(each.duration_us for each in explained[storage])
    page = page_of(trace, profile("pcie4"), file="t", budget_bytes=28 * MIB, asked=Asked(effort=0.1))
    assert page.gaps.keys() == found.keys() and {"swapped", "recomputed"} & {
        gap.decision for own in explained.values() for gap in own
    }


def test_the_gap_of_a_storage_that_leaves_is_the_one_it_leaves_in_and_not_its_widest():
    builder = TraceBuilder(alignment=512)
    kept = builder.before(4 * MIB, Category.PARAMETER, "m.py:1")
    builder.op("aten::mm", reads=[kept], duration_us=10.0)
    for _ in range(9):  # a wide gap, in which nothing needs the room
        builder.op("aten::add", outputs=[512], duration_us=5000.0)
    builder.op("aten::mm", reads=[kept], duration_us=10.0)
    for _ in range(4):
        (large,) = builder.op("aten::mm", outputs=[8 * MIB], duration_us=2000.0)
        builder.free(large)
    builder.op("aten::mm", reads=[kept], duration_us=10.0)
    trace, machine = builder.build(), profile("pcie4")
    carried = carried_jointly(trace, machine, plan_jointly(trace, machine, 9 * MIB, effort=0.1))
    gap, why = reasons(carried)[kept]
    assert (gap.after, gap.before) == (10, 15) and carried.swaps[gap] and why is not Why.ROOM
    assert gap.duration_us < max(each.duration_us for each in carried.gaps[kept])

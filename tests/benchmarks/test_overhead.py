"""The cost of being attached: each way is measured, and a plan is in force where that is said."""

from __future__ import annotations

import pytest

from benchmarks.cpu import overhead
from memfit.running.planned.making import Making

SOME = [pytest.param(name, marks=[pytest.mark.slow] if name != "tiny add" else []) for name in overhead.operations()]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(overhead, "_CALLS", 20)
    monkeypatch.setattr(overhead, "_PLANNED_CALLS", 10)
    monkeypatch.setattr(Making, "done", Making.done)  # what `wait_for_plans` puts there goes with the test
    overhead.wait_for_plans()


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_an_op_is_measured_in_each_way(short, name):
    found = overhead.compare(name, repeats=2)
    assert tuple(found) == overhead.WAYS
    assert all(len(us) == 2 and min(us) > 0 for us in found.values())


def test_what_is_added_is_taken_pair_by_pair():
    us = {"plain": [1.0, 5.0, 1.0], "idle": [2.0, 6.0, 1.5], "attached": [3.0, 7.0, 3.0], "limited": [3.5, 7.5, 3.5],
          "planned": [4.0, 8.0, 4.0]}  # fmt: skip
    shown = overhead.table({"ops_us": {"tiny add": us}, "decoder_ratios": [1.0, 1.1, 0.9]})
    assert shown.rows[0] == ["tiny add", "1.00 us", "+1.00 us", "+2.00 us", "+2.50 us", "+3.00 us"]
    assert shown.rows[1][3] == "1.000x (0.900 to 1.100)"
    assert all(len(row) == len(shown.columns) for row in shown.rows)

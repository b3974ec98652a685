"""What a call costs under a plan is a figure of iterations that ran by one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.common import under_a_plan
from benchmarks.common.waiting import wait_for_plans
from memfit.running.planned.making import Making

pytestmark = pytest.mark.timeout(300)


def test_without_a_plan_there_is_no_figure_of_one(monkeypatch):
    monkeypatch.setattr(under_a_plan, "_ITERATIONS", 1)
    with pytest.raises(RuntimeError, match="no iteration ran by a plan"):
        under_a_plan.us_under_a_plan(lambda: None, 10)


@pytest.mark.slow
def test_there_is_a_figure_of_each_iteration_that_ran_by_one(monkeypatch):
    monkeypatch.setattr(Making, "done", Making.done)  # what `wait_for_plans` puts there goes with the test
    wait_for_plans()
    tiny = torch.ones(4)
    found = under_a_plan.us_under_a_plan(lambda: tiny + tiny, 10)
    assert 0 < len(found) < under_a_plan._ITERATIONS and min(found) > 0

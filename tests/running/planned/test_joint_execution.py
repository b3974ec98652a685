"""Storages are dropped and made again by plan, to the same bits, within the budget, and without copies."""

from __future__ import annotations

import pytest

from memfit import Stats
from running.planned.networks import WORKS
from running.planned.training import LEARNT, trained_inside

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("what plans drop and copy"),
]
STEPS = 14
LONG = ("attentive", "masked")  # to plan jointly
FAST = "embedding"
HIDDEN = ("recurrent",)  # are all copies of a plan that only swaps: nothing is left to gain by dropping


def done_between(first: Stats, last: Stats, name: str) -> int:
    return int(getattr(last, name) - getattr(first, name))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name != FAST else []) for name in WORKS]
)
def test_storages_that_are_dropped_come_back_to_the_same_bits_and_are_not_copied_after_the_trial(name):
    session, stats = trained_inside(WORKS[name], "recompute", "60%", STEPS)
    drops = len(session.planned.dropped)
    assert drops > 0 and not session.planned.plan.swaps
    for before, after in zip(stats[LEARNT:], stats[LEARNT + 1 :], strict=False):
        assert done_between(before, after, "discards") == done_between(before, after, "recomputations") == drops
        assert done_between(before, after, "bytes_out") == done_between(before, after, "bytes_in") == 0
    assert stats[-1].plan_mismatches == stats[-1].derailments == stats[-1].failed_recomputations == 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


JOINTLY = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in WORKS if name not in HIDDEN]


@pytest.mark.long
@pytest.mark.parametrize("name", JOINTLY)
def test_a_joint_plan_copies_what_it_swaps_and_nothing_that_it_drops(name):
    session, stats = trained_inside(WORKS[name], "joint", "50%", STEPS)
    plan = session.planned
    swapped = sum(swap.size_bytes for swap in plan.plan.swaps)
    assert plan.is_joint and plan.dropped and session.stats.plans == 2
    for before, after in zip(stats[LEARNT:], stats[LEARNT + 1 :], strict=False):
        assert done_between(before, after, "discards") == done_between(before, after, "recomputations")
        assert done_between(before, after, "discards") == len(plan.dropped)
        assert done_between(before, after, "bytes_out") <= swapped
        assert done_between(before, after, "evictions") == 0
    assert stats[-1].plan_mismatches == stats[-1].derailments == stats[-1].failed_recomputations == 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.long
def test_the_first_iteration_of_a_plan_copies_what_it_drops():
    session, stats = trained_inside(WORKS["convolutional"], "recompute", "60%", STEPS)
    first = next(i for i, one in enumerate(stats) if one.plans) + 1
    trial = {name: done_between(stats[first - 1], stats[first], name) for name in ("discards", "evictions")}
    assert trial == {"discards": 0, "evictions": len(session.planned.dropped)}
    assert stats[first].recomputations == len(session.planned.dropped)

"""Storages are dropped and made again by plan, to the same bits, within the budget, and without copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from memfit import Stats
from memfit.running.planned.engine_plan import CompressedPlan
from running.plainly import same_bits
from running.planned.networks import WORKS, attentive
from running.planned.training import LEARNT, inside, train, trained_inside

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
    assert session.compressed_plan.is_joint and plan.dropped and session.stats.plans <= 2
    for before, after in zip(stats[LEARNT:], stats[LEARNT + 1 :], strict=False):
        assert done_between(before, after, "discards") == done_between(before, after, "recomputations")
        assert done_between(before, after, "discards") == len(plan.dropped)
        assert done_between(before, after, "bytes_out") <= swapped
        assert done_between(before, after, "evictions") == 0
    assert stats[-1].plan_mismatches == stats[-1].derailments == stats[-1].failed_recomputations == 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


def test_a_plan_is_followed_where_the_backward_pass_keeps_python_numbers():
    """They stay where they are, since torch reads them by raw pointers, and the plan knows it."""
    session, stats = trained_inside(attentive(1), "swap", "60%", STEPS)
    assert session.planned is not None and session.planned.plan.swaps
    assert stats[-1].plan_mismatches == stats[-1].derailments == 0


@pytest.mark.long
def test_the_first_plan_drops_and_foresees_each_re_run_once():
    """Training waits for it, so that no program is solved; what it adds may then be made less, beside training."""
    firsts: list[CompressedPlan] = []

    def after(_step: int) -> None:
        if session.stats.plans == 1 and not firsts:
            firsts.append(session.compressed_plan)

    with inside("joint", "50%") as session:
        train(WORKS[FAST], STEPS, after)
    (first,) = firsts
    plan = first.plan()
    assert first.dropped and not first.is_joint and session.compressed_plan.is_joint
    assert plan.predicted.iteration_us > plan.compute_us > 0
    assert first.foreseen_us == pytest.approx(plan.predicted.iteration_us)
    assert session.compressed_plan.overhead <= first.overhead


def test_what_has_come_back_the_same_is_not_tried_again_when_its_plan_is_back():
    """Of two kinds in turn each has a plan of its own, which comes and goes at every step."""
    small, large = (replace(WORKS[FAST], batch=batch) for batch in (24, 32))
    torch.manual_seed(0)
    network, steps, stats, dropped = small.network(), 24, [], []
    first = [tensor.clone() for tensor in network.state_dict().values()]

    def alternate(after: Callable[[], object] = lambda: None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        for tensor, value in zip(network.state_dict().values(), first, strict=True):
            tensor.copy_(value)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
        for step in range(steps):
            optimizer.zero_grad()
            (large if step % 2 else small).loss(network).backward()
            optimizer.step()
            after()
        return [tensor.detach().clone() for tensor in network.parameters()]

    plain = alternate()

    def note() -> None:
        stats.append(session.stats)
        dropped.append(len(session.planned.dropped) if session.planned else 0)

    with inside("recompute", "60%") as session:
        limited = alternate(note)
    assert same_bits(plain, limited)
    assert stats[-1].plans - stats[-7].plans == 6, "each kind's plan comes and goes"
    assert done_between(stats[-7], stats[-1], "discards") == sum(dropped[-7:-1]) > 0  # by the plan of the step before
    assert done_between(stats[-7], stats[-1], "recomputations") == sum(dropped[-7:-1])


@pytest.mark.long
def test_the_first_iteration_of_a_plan_copies_what_it_drops():
    session, stats = trained_inside(WORKS["convolutional"], "recompute", "60%", STEPS)
    first = next(i for i, one in enumerate(stats) if one.plans) + 1
    trial = {name: done_between(stats[first - 1], stats[first], name) for name in ("discards", "evictions")}
    assert trial == {"discards": 0, "evictions": len(session.planned.dropped)}
    assert stats[first].recomputations == len(session.planned.dropped)

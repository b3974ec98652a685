"""A link that is not, or no longer, what a plan was made for leads to another plan, whichever way it has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import memfit
from memfit.machine import Link, Machine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.planned import drift
from memfit.running.planned.drift import Drift, alike, is_faster, may_gain
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.link import SessionLink
from running.plainly import as_plainly, descend, same_bits
from running.planned.training import LINK, plan_at_fixed_steps, wait_for_plans


def machine(out_gb_per_s: float, into_gb_per_s: float | None = None) -> Machine:
    into = into_gb_per_s or out_gb_per_s
    return Machine("m", *(Link.of_bandwidth(rate, latency_us=0.0) for rate in (out_gb_per_s, into)))


def plan(overhead: float = 0.1) -> CompressedPlan:
    made_for = machine(1.0)
    return CompressedPlan(None, None, made_for, is_given=False, compute_us=1e4, stall_us=100.0, overhead=overhead)


def times_until(note: object, most: int = 100) -> int:
    return next(count for count in range(1, most) if note())


@pytest.mark.parametrize(
    ("now", "then", "faster"),
    [(1.0, 1.0, False), (1.08, 1.0, False), (1.2, 1.0, True), (0.5, 1.0, False), (4.0, None, False)],
)
def test_a_link_is_faster_from_a_tenth_on(now, then, faster):
    assert is_faster(machine(now), None if then is None else machine(then)) is faster


def test_of_two_ways_the_time_of_both_together_counts():
    assert is_faster(machine(2.0, 0.95), machine(1.0)) and not is_faster(machine(2.0, 0.5), machine(1.0))
    assert not alike(machine(2.0, 0.95), machine(1.0)) and alike(machine(1.05, 0.95), machine(1.0))


def test_a_faster_link_is_noted_for_some_iterations_before_there_is_another_plan():
    noted = Drift()
    assert times_until(lambda: noted.note_link(plan(), machine(2.0), 0)) == drift._FASTER
    assert times_until(lambda: noted.note_link(plan(), machine(2.0), 2)) == 16 * drift._FASTER
    for _ in range(drift._FASTER - 1):
        assert not noted.note_link(plan(), machine(2.0), 0)
    assert not noted.note_link(plan(), machine(1.0), 0)  # it was a moment's
    assert times_until(lambda: noted.note_link(plan(), machine(2.0), 0)) == drift._FASTER


def test_waits_longer_than_foreseen_are_noted_likewise():
    noted = Drift()
    assert times_until(lambda: noted.note_stalls(plan(), 200_000, 0)) == drift._STALLED
    assert not any(noted.note_stalls(plan(), 120_000, 0) for _ in range(20))


def test_each_plan_made_anew_takes_more_and_longer_waits_and_a_link_that_is_faster_by_more():
    noted = Drift()  # 100 us are foreseen, and 10 ms of ops
    assert times_until(lambda: noted.note_stalls(plan(), 610_000, 1)) == 4 * drift._STALLED
    assert not any(noted.note_stalls(plan(), 590_000, 1) for _ in range(50))
    assert times_until(lambda: noted.note_link(plan(), machine(1.3), 1)) == 4 * drift._FASTER
    assert not any(noted.note_link(plan(), machine(1.15), 1) for _ in range(50))


def test_a_plan_that_adds_no_time_gains_nothing_by_a_faster_link():
    assert may_gain(plan()) and not may_gain(plan(overhead=0.001))
    assert not may_gain(replace(plan(), is_given=True)) and not may_gain(replace(plan(), compute_us=None))


def train(steps: int, after: Callable[[int], object] = lambda step: None) -> list[torch.Tensor]:
    """Train a deep network; `after` is told of each step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for step, loss in enumerate(descend(optimizer, lambda: net(torch.randn(128, 64)).square().mean(), steps)):
        losses.append(loss.detach())
        after(step)
    return [*losses, *(p.detach().clone() for p in net.parameters())]


@pytest.mark.timeout(120)
@pytest.mark.unstressed("what there is left for a plan to swap")
def test_a_plan_for_a_faster_link_is_put_in_force_once(monkeypatch):
    plan_at_fixed_steps(monkeypatch)
    links, plans, overhead = [LINK], [], []
    monkeypatch.setattr(drift, "_FASTER", 5)
    monkeypatch.setattr(SessionLink, "machine", lambda *_: links[-1])
    with memfit.session("45%", "ram", moves="swap") as session:

        def after(step: int) -> None:
            plan = session.compressed_plan
            plans.append(session.stats.plans)
            overhead.append(plan.overhead if plan else 0.0)
            if step == 9:
                links.append(machine(1.0))

        limited = train(40, after)
    assert plans[9] == 1 and plans[-1] == 2, plans
    assert overhead[9] > 0.01 and overhead[-1] < overhead[9] / 2
    assert same_bits(train(40), limited)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.unstressed("what there is left for a plan to swap")
@pytest.mark.parametrize("change", [pytest.param(8.0, marks=pytest.mark.slow), 0.125])
def test_a_link_that_changes_in_mid_run_is_planned_for(monkeypatch, change):
    wait_for_plans(monkeypatch)
    slow = 5e7
    tier = DisturbedTier(
        "ram", link_bytes_per_second=slow * max(1, 1 / change), link_changes_at=800, link_change=change
    )

    session = as_plainly(lambda: train(150), "45%", tier, moves="swap")
    assert session.plan_searches >= 2  # (what is found is used if it is foreseen to be faster)
    planned_for, slow_us = session.planned.machine.out.copy_us(1 << 20), 1e6 * (1 << 20) / slow
    assert planned_for < 0.8 * slow_us if change > 1 else planned_for > 0.8 * slow_us  # at first 1.4 or 0.4 times it

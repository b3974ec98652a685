"""What lives on unused until the next iteration frees it leaves the arena by plan, and no copy brings it back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.planning.lifetimes import successors
from memfit.running.planned.engine_plan import EnginePlan
from memfit.running.planned.recorded import Recorded
from running.plainly import as_plainly
from running.planned.training import plan_at_fixed_steps

pytestmark = [pytest.mark.timeout(180), pytest.mark.unstressed("what plans move")]
STEPS = 24
UNEXPECTED = range(18, 21)


@pytest.fixture(autouse=True)
def at_fixed_steps(monkeypatch):
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    plan_at_fixed_steps(monkeypatch)


def train(reads: str = "", device: str = "cpu") -> list[Tensor]:
    """Train as many scripts do: gradients are cleared right before the backward pass, outputs live until the next."""
    torch.manual_seed(0)
    layers = (layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU()))
    net = nn.Sequential(*layers, nn.Linear(256, 2048)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    seen, outputs = [], None
    for step in range(STEPS):
        batch = torch.randn(64, 256, device=device)
        if reads == "gradient" and step in UNEXPECTED:
            seen.append(net[0].weight.grad.norm())
        if reads == "kept" and step in UNEXPECTED:
            seen.append(net[0].weight.grad)  # it is not freed
        if reads == "outputs" and step in UNEXPECTED:
            seen.append(outputs.detach().sum())
        if reads == "clears early" and step in UNEXPECTED:
            optimizer.zero_grad()
        outputs = net(batch)
        loss = outputs.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *net.parameters()]


def plan_of(session: memfit.Session) -> EnginePlan:
    assert session.planned is not None and session.planned.plan is not None
    return session.planned


@pytest.mark.long
@pytest.mark.parametrize("moves", ["swap", "joint"])
def test_gradients_that_are_cleared_late_leave_for_good(moves):
    session = as_plainly(train, "60%", "ram", moves=moves)
    stats, swaps = session.stats, plan_of(session).plan.swaps
    gone = [swap for swap in swaps if not swap.returns]
    assert sum(swap.size_bytes for swap in gone) >= 4 * 256 * 256 * 4
    assert session.planned_iterations >= STEPS - 10 and stats.plan_mismatches == stats.derailments == 0
    assert stats.bytes_out - stats.bytes_in >= (session.planned_iterations - 2) * sum(s.size_bytes for s in gone)
    assert stats.peak_footprint_bytes <= stats.budget_bytes


@pytest.mark.long
@pytest.mark.parametrize("reads", ["gradient", "kept", "outputs", "clears early"])
def test_what_is_used_after_all_is_there(reads):
    session = as_plainly(lambda: train(reads), "60%", "ram", moves="swap")
    assert any(not swap.returns for swap in plan_of(session).plan.swaps)
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.long
def test_a_plan_without_them_waits_longer(monkeypatch):
    found = plan_of(as_plainly(train, "60%", "ram", moves="swap"))
    monkeypatch.setattr("memfit.planning.lifetimes._Ends.unused_until", lambda *_: None)
    all_return = plan_of(as_plainly(train, "60%", "ram", moves="swap"))
    assert all(swap.returns for swap in all_return.plan.swaps) and found.added_us < 0.9 * all_return.added_us


def three_alike(steps: int = STEPS) -> list[Tensor]:
    """Train with three tensors of one size that live on: the next iteration uses one of them, and makes them anew."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
    seen = []
    noise = batch = outputs = torch.zeros(64, 256)
    for _ in range(steps):
        seen.append(outputs.detach().sum())  # made last, and used first
        batch = torch.randn(64, 256)
        noise = torch.randn(64, 256) + batch[0]
        outputs = net(batch + noise)
        optimizer.zero_grad()
        outputs.square().mean().backward()
        optimizer.step()
    return [*seen, noise, *net.parameters()]


def test_what_the_next_iteration_frees_is_what_this_one_leaves_behind(monkeypatch):
    """Those of one size are not taken for each other."""
    found, recorded = [], Recorded.of
    monkeypatch.setattr(Recorded, "of", lambda *about: found.append(recorded(*about)) or found[-1])
    session = as_plainly(three_alike, "70%", "ram")
    assert session.stats.plans > 0
    pairs = 0
    for iterations in filter(None, found):
        ends, blocks = ends_of(iterations), iterations.blocks
        for made, old in successors(iterations.trace).items():
            assert ends[1][blocks[made]] == ends[0][blocks[old]]
            pairs += iterations.trace.storages[made].size_bytes == 64 * 256 * 4
    assert pairs >= 3


def ends_of(iterations: Recorded) -> list[dict[int, int]]:
    """Return which of an iteration's allocations and frees is the end of a block, for both iterations."""
    stream = iterations.iterations
    half = len(stream.block) // 2
    assert len(stream.block) == 2 * half
    parts = [range(half), range(half, 2 * half)]
    return [{int(stream.block[i]): i - part[0] for i in part if stream.size[i] < 0} for part in parts]

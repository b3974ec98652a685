"""Swaps by plan: copies beside the ops, the same bits whatever the program does meanwhile, and no copy left behind."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec
from running.helpers_training import Failed, Fails
from running.plainly import as_plainly, descend, same_bits
from running.side_by_side import repeated

pytestmark = pytest.mark.timeout(180)  # a deadlock fails, and does not hang

PLANNED_FROM = 4  # optimizer steps: one to see it, two alike, and the rest of an iteration
EVENTS = (
    "train",
    "train",
    "small batch",
    "evaluate",
    "extra op",
    "keep",
    "write",
    "read",
    "fail",
    "copy",
    "step twice",
)
TIERS = (
    TierSpec("ram"),
    TierSpec("disk", tempfile.gettempdir()),
    TierSpec("ram", checked=True),
    DisturbedTier("ram", link_bytes_per_second=5e7, link_latency_seconds=1e-4),
    DisturbedTier("disk", tempfile.gettempdir(), compress=True, link_bytes_per_second=5e7),
)


def train(events: Sequence[str], width: int = 64, batch: int = 64) -> list[torch.Tensor]:
    """Train through the events; returns everything a user could see."""
    torch.manual_seed(0)
    layers = (m for _ in range(6) for m in (torch.nn.Linear(width, width), torch.nn.GELU()))
    net = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    seen: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []

    def forward(size: int, fails: bool = False) -> torch.Tensor:
        out = net(torch.randn(size, width))
        return (Fails.apply(out) if fails else out).pow(2).mean()

    for event in events:
        optimizer.zero_grad()
        if event == "evaluate":
            with torch.no_grad():
                seen.append(forward(2 * batch))
        if event == "write":
            with torch.no_grad():
                net[4].weight.mul_(0.5)
        if event == "read":
            seen.append(torch.from_numpy(net[2].weight.detach().numpy().copy()))
        if event == "copy":
            seen.append(copy.deepcopy(net[6].weight.detach()))
        loss = forward(batch // 2 if event == "small batch" else batch, event == "fail")
        if event == "extra op":
            loss = loss + net[0].weight.sum()
        try:
            loss.backward()
        except Failed:
            continue
        if event == "keep":
            kept.append(net[0].weight.grad.clone())
        optimizer.step()
        if event == "step twice":
            optimizer.step()
        seen.append(loss.detach())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.clone() for tensor in (*seen, *kept, *net.parameters(), *moments)]


QUIET = ["train"] * 14


@pytest.mark.unstressed("what there is left for a plan to swap")
@pytest.mark.parametrize("tier", TIERS, ids=str)
@pytest.mark.parametrize("budget", ["50%", "40%"])
def test_planned_swaps_change_no_bit(budget, tier):
    stats = as_plainly(lambda: train(QUIET), budget, tier).stats
    assert stats.plans >= 1 and stats.swaps > 0 and stats.prefetches > 0 and stats.failed_copies == 0
    assert stats.peak_footprint_bytes <= stats.budget_bytes


@pytest.mark.unstressed("what there is left for a plan to swap")
@pytest.mark.parametrize("event", sorted(set(EVENTS)))
def test_whatever_happens_in_planned_mode_changes_no_bit(event):
    events = [*QUIET, event, "train", "train", event, event, *QUIET]
    stats = as_plainly(lambda: train(events), "40%", TierSpec("ram", checked=True)).stats
    assert stats.prefetches > 0 and stats.peak_footprint_bytes <= stats.budget_bytes


@pytest.mark.long
@given(
    st.lists(st.sampled_from(EVENTS), min_size=1, max_size=14),
    st.sampled_from(["60%", "45%", "38%"]),
    st.sampled_from(TIERS),
)
def test_any_order_of_events_changes_no_bit(events, budget, tier):
    events = [*QUIET[:PLANNED_FROM], *events, "train", "train"]
    stats = as_plainly(lambda: train(events), budget, tier).stats
    assert stats.peak_footprint_bytes <= stats.budget_bytes


@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("field", ["fail_write", "fail_read"])
@pytest.mark.parametrize("at", [120, pytest.param(200, marks=pytest.mark.long), 260])
def test_a_copy_that_fails_once_costs_time_and_no_bit(kind, field, at):
    """The op that needs the bytes copies them itself; what could not leave stays."""
    plain = train(QUIET)
    tier = DisturbedTier(kind, tempfile.gettempdir() if kind == "disk" else "", **{field: at})
    try:
        with memfit.session("40%", tier):
            planned = train(QUIET)
    except memfit.TierError as error:
        assert "injected fault" in str(error)  # the copy was an op's own, or the session's last: there was no other way
    else:
        assert same_bits(plain, planned)


@pytest.mark.long
@pytest.mark.unstressed("what there is left for a plan to swap")
@pytest.mark.parametrize("change", [0.1, pytest.param(10.0, marks=pytest.mark.slow)])
def test_a_link_whose_speed_changes_in_mid_run_changes_no_bit(change):
    events, bytes_per_second = QUIET * 16, 2e9 if change < 1 else 2e8
    tier = DisturbedTier("ram", link_bytes_per_second=bytes_per_second, link_changes_at=300, link_change=change)
    session = as_plainly(lambda: train(events, 256, 256), "40%", tier)
    stats, plan = session.stats, session.planned
    assert stats.prefetches > 0 and stats.failed_copies == 0
    assert stats.peak_footprint_bytes <= stats.budget_bytes
    if change < 1:  # a plan for what the link does now, not for what it did in the mean
        least_us = 1e6 * (1 << 20) / (bytes_per_second * change)
        assert stats.plans >= 2 and plan.machine.out.copy_us(1 << 20) > 0.8 * least_us


def test_when_every_copy_fails_from_some_time_on_the_error_is_clear_and_nothing_is_lost():
    with (
        pytest.raises(memfit.TierError, match="injected fault"),
        memfit.session("40%", DisturbedTier("ram", fail_write=150, repeat=True)),
    ):
        train(["train"] * 60)
    assert same_bits(train(QUIET), train(QUIET))  # torch is as it was


@pytest.mark.long
def test_leaving_the_session_with_copies_under_way_loses_nothing():
    as_plainly(lambda: train(QUIET), "40%", DisturbedTier("ram", link_bytes_per_second=2e7))
    with pytest.raises(Failed), memfit.session("40%", DisturbedTier("ram", link_bytes_per_second=2e7)):
        train(QUIET)
        raise Failed


@pytest.mark.copied("what a plan swaps")
def test_a_forked_child_reads_what_is_swapped_out_and_training_goes_on():
    def loop(fork: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
        optimizer = torch.optim.Adam(net.parameters())
        for step, _ in enumerate(descend(optimizer, lambda: net(torch.randn(64, 64)).pow(2).mean(), 16)):
            if fork and step in (10, 12):
                assert in_child(lambda: sum(float(p.sum()) for p in net.parameters())) == 0
        return [p.detach().clone() for p in net.parameters()]

    plain = loop(False)
    with memfit.session("40%", DisturbedTier("ram", link_bytes_per_second=5e7)) as session:
        planned = loop(True)
        assert session.stats.prefetches > 0
    assert same_bits(plain, planned)


def in_child(read: Callable[[], object]) -> int:
    """Run `read` in a forked child; returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            read()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_ops_of_another_thread_in_planned_mode_change_no_bit():
    plain = train(QUIET)
    sums: list[float] = []
    generator = torch.Generator().manual_seed(1)

    def busy() -> None:
        sums.append(float(torch.ones(1000).mul(2).sum()) + 0 * float(torch.rand(1, generator=generator)))

    with memfit.session("45%", "ram"):
        train(QUIET[:8])
        with repeated(busy, every_s=0.001):
            planned = train([*QUIET])
    assert set(sums) == {2000.0}
    assert same_bits(plain, planned)

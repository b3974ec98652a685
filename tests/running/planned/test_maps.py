"""Plans below an op's working set: what does not fit is mapped as planned, with the same bits."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memfit
from memfit.ir import Plan
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from memfit.running.session import Session
from running.plainly import as_plainly
from running.planned.training import LEARNT, plan_at_fixed_steps, wait_for_plans

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.unstressed("what is mapped by a plan"),
    pytest.mark.usefixtures("patient"),
]

STEPS = 14
WORDS = 5_120  # rows of whole pages: what slices make of them can be away
BUDGET = 7 << 18  # 1.75 MiB: the last layer's weight and output have 1.2 MiB each


@pytest.fixture
def patient(monkeypatch):
    """Training waits for its plan."""
    wait_for_plans(monkeypatch)


@pytest.fixture(params=[pytest.param("ram", marks=pytest.mark.slow), "disk"])
def tier(request, tmp_path) -> TierSpec:
    return TierSpec("ram") if request.param == "ram" else TierSpec("disk", str(tmp_path))


def words(make: Callable = torch.optim.AdamW, steps: int = STEPS, after_step: Callable = lambda step: None) -> list:
    """Train a small network with a loss over many words."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, WORDS))
    optimizer, losses = make(net.parameters(), lr=0.01), []
    for step in range(steps):
        loss = F.cross_entropy(net(torch.randn(64, 32)), torch.randint(0, WORDS, (64,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        after_step(step)
    return [torch.tensor(losses), *(p.detach() for p in net.parameters())]


def plan_of(session: Session) -> Plan:
    compressed = session.compressed_plan
    assert compressed is not None and (found := compressed.plan().plan) is not None
    return found


@pytest.mark.long
def test_the_plan_maps_what_does_not_fit_and_the_bits_are_the_same(tier):
    session = as_plainly(words, BUDGET, tier, plan_cache=False, split="never")
    assert session.planned_iterations >= 4 and not session.unplanned
    maps = plan_of(session).maps
    assert maps and all((each.frame_bytes > 0) == (tier.kind == "disk") for each in maps)
    stats = session.stats
    assert stats.peak_footprint_bytes <= BUDGET and stats.peak_growth_bytes == 0
    assert stats.plan_mismatches <= 1 and stats.derailments == 0


@pytest.mark.long
def test_a_product_whose_bytes_are_mapped_all_three_moves_each_a_few_times(tmp_path):
    """At this budget frames lie beside a plan's zone now and then, and what an op maps has just been copied out."""

    def train() -> list:
        torch.manual_seed(0)
        net = nn.Sequential(nn.LayerNorm(200), nn.Linear(200, WORDS))
        optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(torch.randn(64, 200)), torch.randint(0, WORDS, (64,)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [torch.tensor(losses), *(p.detach() for p in net.parameters())]

    session = as_plainly(train, 4_644_864, TierSpec("disk", str(tmp_path)), plan_cache=False)
    assert session.planned_iterations >= 4
    stats = session.stats
    assert stats.plan_mismatches <= 1 and stats.peak_footprint_bytes <= stats.budget_bytes
    assert stats.mapped_bytes_in < STEPS * 300e6  # 9 MB of operands; a frame for each touch would move thousands


@pytest.mark.long
def test_as_many_ops_map_in_a_planned_iteration_as_the_plan_says(tier):
    counts = []
    with memfit.session(BUDGET, tier, plan_cache=False, split="never") as session:
        words(after_step=lambda step: counts.append(session.stats.mapped_ops))
        maps = plan_of(session).maps
    # The rest is there, where it lay in the arena already when its op began.
    assert 0 < counts[-1] - counts[-2] <= len(maps)
    assert counts[-1] - counts[-2] == counts[-2] - counts[-3]


@pytest.mark.long
@pytest.mark.parametrize("budget", [1_507_328, 1_540_096, 1_572_864, 1_703_936, BUDGET])
def test_every_planned_iteration_runs_in_slices_what_was_tried(budget, tier, monkeypatch):
    """An output lies in its place of the plan while slices are computed beside it, however little is left for them."""
    plan_at_fixed_steps(monkeypatch)
    counts = []
    with memfit.session(budget, tier, plan_cache=False) as session:
        limited = words(after_step=lambda step: counts.append((session.planned_iterations, session.stats.split_ops)))
    assert all(torch.equal(a, b) for a, b in zip(words(), limited, strict=True))
    planned = pairwise(counts[LEARNT - 1 :])
    assert all(after == before + 1 and more > fewer for (before, fewer), (after, more) in planned), counts
    # What slices and their outputs take is the plan's; so is what is gathered for a loss.
    assert session.stats.plan_mismatches == 0


@pytest.mark.long
def test_making_again_keeps_away_from_what_is_mapped(tier):
    session = as_plainly(words, BUDGET, tier, plan_cache=False, moves="recompute")
    assert session.planned_iterations > 0 or session.unplanned


def test_without_mapping_there_is_no_plan():
    with (
        pytest.raises(memfit.BudgetError, match="cannot be met"),
        memfit.session(BUDGET, "ram", map="never", split="never"),
    ):
        words()


@pytest.mark.long
def test_the_next_run_takes_the_plan_of_the_last(tier, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path / "plans"))
    first = as_plainly(words, BUDGET, tier)
    again = as_plainly(words, BUDGET, tier)
    assert first.kept_plans == 0 and again.kept_plans == 1
    assert plan_of(first).maps == plan_of(again).maps


@pytest.mark.slow
def test_a_plan_that_is_dropped_on_the_way_leaves_the_bits_as_they_are(tier):
    def drop(step: int) -> None:
        if step in (9, 11):
            engine.load().drop_plan()

    plain = words()
    with memfit.session(BUDGET, tier, plan_cache=False) as session:
        limited = words(after_step=drop)
        assert session.planned_iterations > 0
        assert all(torch.equal(a, b) for a, b in zip(plain, limited, strict=True))


def table(rows: int = 8_192, steps: int = STEPS) -> list:
    """Train an embedding table of 2 MiB, a few rows at a time."""
    torch.manual_seed(0)
    table, head = nn.Embedding(rows, 64, sparse=True), nn.Linear(64, 8)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (table, head)]
    losses = []
    for _ in range(steps):
        loss = head(table(torch.randint(0, rows, (128,)))).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return [torch.tensor(losses), table.weight.detach(), head.weight.detach()]


def test_a_table_larger_than_the_budget_is_never_in_the_arena(tier):
    budget = 5 << 18  # 1.25 MiB
    session = as_plainly(table, budget, tier, plan_cache=False)
    assert session.planned_iterations > 0
    stats = session.stats
    assert stats.peak_footprint_bytes <= budget and plan_of(session).maps


def images_in_layers(steps: int = 24, after_step: Callable = lambda: None) -> list:
    """Train the example's network, of which one op does not fit."""
    vgg = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "vgg.py"))
    torch.manual_seed(0)
    net = vgg["VGG"](11, 16, 10)
    optimizer, losses = torch.optim.AdamW(net.parameters(), lr=0.001), []
    for _ in range(steps):
        images, labels = torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,))
        losses.append(vgg["train_step"](net, optimizer, images, labels).item())
        after_step()
    return [torch.tensor(losses), *(value for value in net.state_dict().values())]


@pytest.mark.long
def test_what_is_recorded_is_whole_so_that_slices_have_their_place_in_the_plan(tmp_path):
    counts = []
    with memfit.session("44%", TierSpec("disk", str(tmp_path)), plan_cache=False) as session:

        def count() -> None:
            counts.append((session.planned_iterations, session.stats.split_ops, session.stats.mapped_ops))

        limited = images_in_layers(after_step=count)
    assert all(torch.equal(a, b) for a, b in zip(images_in_layers(), limited, strict=True))
    by_plan = [
        (more - fewer, after - before)
        for (first, fewer, before), (second, more, after) in pairwise(counts)
        if second > first
    ]
    assert len(by_plan) >= 4 and by_plan.count((1, 0)) >= len(by_plan) - 2, counts
    # Whole, the op also allocates what dies in it, as large as an output: slices' outputs lie where that outlives it.
    assert session.stats.plan_mismatches == 0

"""A session changes where bytes are and nothing else: results are the plain run's, and the budget holds."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.errors import UsageError
from memfit.planning.lifetimes import peak_live
from memfit.running import engine
from running.helpers_training import (
    PROGRAMS,
    STEPS,
    Log,
    batches,
    cnn,
    convnet,
    known,
    mlp,
    run_in_session,
    run_inside,
    run_plainly,
    transformer,
)
from running.plainly import descend

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]

TIERS = ("ram", "disk", "disk,compress")
COSTLY = ("gan", "second_order")  # on a disk


def stats_now() -> dict[str, int]:
    return engine.load().stats()


def test_a_program_run_twice_plainly_computes_the_same():
    """What the comparisons below stand on."""
    for program in PROGRAMS.values():
        assert run_plainly(program).rows == known(program).rows


@pytest.mark.parametrize(
    ("name", "kind", "tier"),
    [
        pytest.param(*each, marks=[pytest.mark.long] if each[0] in COSTLY and each[2] == "disk" else [])
        for each in product(PROGRAMS, ("bytes", "percent"), TIERS)
    ],
)
def test_every_loss_gradient_weight_and_state_is_the_plain_runs(name, kind, tier):
    plain = known(PROGRAMS[name])
    log, session = run_in_session(PROGRAMS[name], plain.budget(kind), tier)
    assert log.rows == plain.rows
    assert session.stats.bytes_out > 0 and session.stats.bytes_in > 0  # it was not too easy
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.unstressed("what moves")
def test_a_session_without_a_budget_moves_nothing_and_records():
    log, session = run_in_session(cnn, None, "disk")
    assert log.rows == known(cnn).rows
    assert session.stats.budget_bytes == 0
    assert session.stats.bytes_out == session.stats.bytes_in == session.stats.evictions == 0
    assert session.stats.tier_footprint_bytes == 0
    assert session.trace.ops and session.recorded is session.trace


# --- the budget is never exceeded


class Sampler:
    """Asks the engine for its statistics around every module's forward and backward."""

    def __init__(self) -> None:
        self.samples: list[dict[str, int]] = []

    def watch(self, model: nn.Module) -> None:
        for module in model.modules():
            module.register_forward_pre_hook(lambda *_: self.sample())
            module.register_forward_hook(lambda *_: self.sample())
        for parameter in model.parameters():
            parameter.register_hook(lambda _: self.sample())
            parameter.register_post_accumulate_grad_hook(lambda _: self.sample())

    def sample(self) -> None:
        self.samples.append(stats_now())


def sampled_training(sampler: Sampler) -> None:
    torch.manual_seed(0)
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters())
    sampler.watch(model)
    for x in batches(STEPS, 8, 3, 16, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(10, (8,))).backward()
        sampler.sample()
        optimizer.step()
        sampler.sample()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["bytes", "percent"])
def test_the_arena_is_inside_the_budget_at_every_hook(kind, tier):
    sampler = Sampler()
    with memfit.session(known(cnn).budget(kind), tier):
        sampled_training(sampler)
    limited = [s for s in sampler.samples if s["budget_bytes"]]
    assert len(limited) > 30
    for s in limited:
        assert s["footprint_bytes"] <= s["peak_footprint_bytes"] <= s["budget_bytes"] - s["stray_bytes"]
        assert s["resident_bytes"] <= s["footprint_bytes"]
        assert s["peak_resident_bytes"] <= s["peak_footprint_bytes"]


class EveryOp(TorchDispatchMode):
    """Samples after every op below autograd, those of the backward pass and the optimizer too."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self._sampler = sampler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self._sampler.sample()
        return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_arena_is_inside_the_budget_after_every_op(name):
    sampler = Sampler()
    budget = known(PROGRAMS[name]).tight_bytes
    with memfit.session(budget, "ram") as session, EveryOp(sampler):
        log = run_inside(session, PROGRAMS[name])
    assert log.rows == known(PROGRAMS[name]).rows
    assert len(sampler.samples) > 200
    assert max(s["footprint_bytes"] for s in sampler.samples) <= session.stats.peak_footprint_bytes <= budget
    assert max(s["resident_bytes"] for s in sampler.samples) <= session.stats.peak_resident_bytes <= budget


@pytest.mark.copied("where storages are")
@pytest.mark.parametrize("kind", ["bytes", "percent"])
def test_statistics_agree_with_each_other_at_every_hook(kind):
    sampler = Sampler()
    with memfit.session(known(cnn).budget(kind), "ram"):
        sampled_training(sampler)
    for s in (s for s in sampler.samples if s["budget_bytes"]):
        assert s["largest_free_bytes"] <= s["free_bytes"]
        assert s["resident_bytes"] + s["free_bytes"] <= s["budget_bytes"]
        assert s["live_bytes"] <= s["resident_bytes"] + s["tier_used_bytes"]
        assert s["live_bytes"] <= s["peak_live_bytes"]
        assert s["tier_used_bytes"] <= s["tier_footprint_bytes"]
        assert s["drops"] <= s["evictions"]
    growing = ("ops", "allocations", "evictions", "drops", "bytes_out", "bytes_in", "relocations", "iterations")
    for field in growing:
        values = [s[field] for s in sampler.samples]
        assert values == sorted(values), field


def test_the_engine_counts_the_live_bytes_of_the_tensors():
    with memfit.session(None, "ram") as session:
        base = session.stats
        kept = [torch.empty(size, dtype=torch.uint8) for size in (1, 63, 64, 65, 100_000)]
        now = session.stats
        assert now.live_bytes - base.live_bytes == sum(t.nbytes for t in kept)
        assert now.resident_bytes - base.resident_bytes == 64 * 3 + 128 + 100_032
        assert now.allocations - base.allocations == 5
        del kept
        assert session.stats.live_bytes == base.live_bytes
        assert session.stats.peak_live_bytes >= now.live_bytes


def test_statistics_after_the_session_are_those_at_its_end():
    with memfit.session("200KiB", "ram") as session:
        kept = torch.zeros(1000)
        kept.add_(1)
        inside = session.stats
    assert session.stats == inside
    assert 0 <= session.stats.fragmentation <= 1


# --- a share of the peak


@pytest.mark.parametrize("budget", ["60%", "75%", "90%"])
def test_a_share_holds_from_the_end_of_the_first_whole_iteration(budget):
    budgets = []

    def watched(log: Log) -> None:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in descend(optimizer, lambda: model(torch.randn(32, 64)).square().mean(), STEPS):
            budgets.append(stats_now()["budget_bytes"])

    _, session = run_in_session(watched, budget, "ram")
    share = math.floor(int(budget[:-1]) * peak_live(session.trace, aligned=True)[0] / 100)
    assert budgets == [0, share, share, share]
    assert session.stats.peak_footprint_bytes <= share


def test_a_share_of_100_percent_moves_next_to_nothing():
    log, session = run_in_session(transformer, "100%", "ram")
    assert log.rows == known(transformer).rows
    assert session.stats.budget_bytes == known(transformer).peak_bytes


def test_a_share_never_holds_when_no_iteration_is_whole():
    with memfit.session("10%", "ram") as session:
        torch.ones(1000).add_(1)
    assert session.stats.budget_bytes == 0
    assert session.recorded is None
    with pytest.raises(UsageError, match="no whole iteration"):
        _ = session.trace

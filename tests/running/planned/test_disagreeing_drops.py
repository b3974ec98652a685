"""Drops that cannot be trusted: other bytes the second time, or no way to run again. Nothing is lost; it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memfit.running import engine
from memfit.running.planned import op_times
from memfit.running.planned.asking import Asking
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.states import Known
from running.plainly import same_bits
from running.planned.kernels import Forgetful, done_by
from running.planned.networks import Foreign, activated
from running.planned.training import hand_nothing_over, inside, train

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("what plans drop"),
]
STEPS = 20


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    kernel = Forgetful()
    with done_by(kernel.silu, "silu", "CPU"):
        yield kernel
    x = torch.ones(64)
    assert torch.equal(F.silu(x), F.silu(x))


@pytest.mark.long
def test_a_storage_that_comes_out_different_is_named_and_never_dropped_again(forgetful):
    work = activated(nn.SiLU)
    plain = train(work, STEPS)
    forgetful.seen.clear()
    assert forgetful.repeated == 0
    tried: list[tuple[int, list[tuple[int, str]]]] = []
    plans: list[tuple[int, ...]] = []

    def look(step: int) -> None:
        tried.append(engine.load().tried_drops())
        plan = session.compressed_plan
        plans.append(plan.dropped if plan else ())

    with inside("joint", "60%") as session:
        limited = train(work, STEPS, look)
    assert same_bits(plain, limited)
    failed = {(dropped[number], why) for dropped, (_, found) in zip(plans, tried, strict=True) for number, why in found}
    named = {storage for storage, _ in failed}
    assert forgetful.repeated > 0 and named
    assert {why for _, why in failed} <= {f"aten::{op}: they came out different" for op in ("silu", "addmm")}
    assert any("silu" in why for _, why in failed)
    assert session.stats.plans >= 2 and not named & set(plans[-1])
    assert tried[-1] == (0, []), "what the last plan drops can be made again"


@pytest.fixture
def nothing_handed_over(monkeypatch):
    """With in-place reuse these networks need not drop what this is about."""
    hand_nothing_over(monkeypatch)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_handed_over")
def test_a_value_that_the_kernel_makes_is_never_wrong_even_on_the_way_to_another(forgetful):
    """The wrong output of a re-run may be an input of the next: it is the drop's bytes that are compared."""
    work = activated(lambda: nn.Sequential(nn.SiLU(), nn.Tanh()))
    plain = train(work, STEPS)
    forgetful.seen.clear()
    with inside("recompute", "50%") as session:
        assert same_bits(plain, train(work, STEPS))
    assert forgetful.repeated > 0 and session.stats.failed_recomputations > 0


@pytest.mark.long
@pytest.mark.usefixtures("nothing_handed_over")
def test_a_storage_without_a_recipe_is_named_and_never_dropped_again():
    work = activated(Foreign)
    plain = train(work, STEPS)
    with inside("joint", "50%") as session:
        told: set[str] = set()
        limited = train(work, STEPS, lambda step: told.update(why for _, why in engine.load().tried_drops()[1]))
        (untried, failed), plan = engine.load().tried_drops(), session.planned
    assert same_bits(plain, limited)
    assert {why for why in told if "cannot be met" not in why} == {"what it is made from is not known"}  # or no room
    assert (untried, failed) == (0, []) and plan.plan.swaps, "the last plan drops what can be made again only"
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


def test_the_plan_that_is_made_with_the_times_of_ops_does_without_what_came_out_different(forgetful, monkeypatch):
    """No other plan is made for that before."""
    asked, make = [], Asking.make

    def made(self: Asking, known: Known, **about: str) -> Making:
        asked.append((about.get("stage"), len(known.never)))
        return make(self, known, **about) if known.plan is None else Making(lambda _: Made())

    monkeypatch.setattr(op_times, "_SAMPLES", 5)
    monkeypatch.setattr(Asking, "make", made)
    monkeypatch.setattr(CompressedPlan, "may_be_improved", property(lambda plan: not plan.is_joint))
    work = activated(nn.SiLU)
    plain = train(work, STEPS)
    forgetful.seen.clear()
    with inside("joint", "60%"):
        assert same_bits(plain, train(work, STEPS))
    (first, nothing), (second, several) = asked
    assert (first, nothing, second) == ("first", 0, "joint") and several > 0

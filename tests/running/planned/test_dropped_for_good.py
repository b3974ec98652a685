"""What a program holds after its last use is dropped for good by plan, and made again if somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import memfit
from memfit.files.plan import load_plan, save_plan
from memfit.running import engine
from memfit.running.planned import engine_plan
from memfit.running.planned.given import Used
from running.plainly import as_plainly
from running.planned.kernels import Forgetful, done_by
from running.planned.training import LEARNT

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("what plans drop"),
    pytest.mark.long,
]
STEPS = 20
UNEXPECTED = range(14, 17)
BUDGET = 8_000_000
"""Of some 10.5 MB: five of the six outputs that are held take 2.6 MB."""


def train(
    reads: str = "", also: Callable[[Tensor], Tensor] | None = None, look: Callable[[], object] = lambda: None
) -> list[Tensor]:
    """Train with what each layer makes in a list until the backward pass is over, for nobody in most steps.

    Arguments:
        reads: When one is read after all in a few steps: "in time", "late" (its weights have changed), or in the "next"
            step; "at the end": the program ends with the list.
        also: Makes what is held of the outputs.
        look: Is called after each step.
    """
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-2)
    seen, made, later = [], None, []
    for step in range(STEPS):
        x, held = torch.randn(512, 256), []
        for layer in layers:
            made = layer(x)
            held.append(made.detach() if also is None else also(made.detach()))
            x = made.relu()
        optimizer.zero_grad()
        loss = x.square().mean()
        loss.backward()
        seen += [one.sum() for one in later]
        later.clear()
        if reads == "at the end" and step == STEPS - 1:
            return held
        if step in UNEXPECTED and reads:
            (seen if reads == "in time" else later).append(held[2].sum() if reads == "in time" else held[2])
        del held, made
        optimizer.step()
        if reads == "late":
            seen += [one.sum() for one in later]
            later.clear()
        seen.append(loss.detach())
        look()
    return [*seen, *(weight.detach() for weight in layers.parameters())]


def retain(again: bool) -> list[Tensor]:
    """Train two networks, one after the other, with the first one's graph retained; a few steps go back `again`."""
    torch.manual_seed(0)
    nets = [nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()) for _ in range(5))) for _ in range(2)]
    optimizer = torch.optim.SGD([weight for net in nets for weight in net.parameters()], lr=1e-2)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(512, 256)
        loss = nets[0](x).square().mean()
        loss.backward(retain_graph=True)
        other = nets[1](x).square().mean()
        other.backward()
        if again and step in UNEXPECTED:
            loss.backward()
        seen += [loss.detach(), other.detach()]
        del loss, other
        optimizer.step()
    return [*seen, *(weight.detach() for net in nets for weight in net.parameters())]


def for_good(session: memfit.Session) -> int:
    assert session.planned is not None and session.planned.plan is not None
    return sum(not one.returns for one in session.planned.plan.recomputes)


def assert_within(session: memfit.Session) -> None:
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


def test_nothing_runs_and_nothing_is_copied_for_what_is_held_for_nobody():
    stats: list[memfit.Stats] = []
    with memfit.session(BUDGET, "ram", moves="recompute") as session:
        train(look=lambda: stats.append(session.stats))
        dropped, gone = len(session.planned.dropped), for_good(session)
    assert gone > 0 and f"{gone} storages dropped for good" in session.planned.describe()
    before, after = stats[-2:]
    assert after.discards - before.discards == dropped
    assert after.recomputations - before.recomputations == dropped - gone
    assert after.bytes_out == before.bytes_out and after.evictions == before.evictions
    assert after.plan_mismatches == after.derailments == after.failed_recomputations == 0
    assert_within(session)


@pytest.mark.parametrize("reads", ["in time", "late", "next", "at the end"])
def test_what_is_read_after_all_has_its_bits_also_when_its_weights_have_changed(reads):
    session = as_plainly(lambda: train(reads), BUDGET, "ram", moves="recompute")
    assert for_good(session) > 0 and session.stats.recomputations > 0
    assert_within(session)


@pytest.mark.parametrize("again", [False, True])
def test_a_retained_graph_that_nobody_goes_back_through_is_dropped(again):
    session = as_plainly(lambda: retain(again), 9_500_000, "ram", moves="recompute")
    assert for_good(session) > 0 and (session.stats.recomputations > 0) >= again
    assert_within(session)


def test_a_plan_that_was_passed_drops_for_good_as_it_says(tmp_path):
    found = as_plainly(train, BUDGET, "ram", moves="recompute")
    save_plan(found.planned.plan, tmp_path / "plan")
    session = as_plainly(train, BUDGET, "ram", moves="recompute", plan=load_plan(tmp_path / "plan"))
    assert session.given_plan == Used() and for_good(session) == for_good(found) > 0


def test_what_comes_out_different_is_found_at_once_and_stays():
    kernel, told = Forgetful(), set[str]()

    def look() -> None:
        told.update(why for _, why in engine.load().tried_drops()[1])

    def program() -> list[Tensor]:
        kernel.seen.clear()
        return train("in time", F.silu, look)

    with done_by(kernel.silu, "silu", "CPU"):
        session = as_plainly(program, BUDGET, "ram", moves="joint")
    assert kernel.repeated > 0 and any("they came out different" in why for why in told)
    assert_within(session)


def test_a_trial_that_finds_no_room_ends_no_plan_and_exceeds_no_budget():
    """Whatever is made for a comparison alone, nobody has asked for it."""
    seen, wide, told = set[float](), [0], set[str]()

    def silu(x: Tensor) -> Tensor:
        known = x.sum().item()
        if known in seen:
            wide[0] += 1
            torch.empty(2 * BUDGET, dtype=torch.uint8, device=x.device)
        seen.add(known)
        return torch.sigmoid(x).mul_(x)

    def look() -> None:
        told.update(why for _, why in engine.load().tried_drops()[1])

    def program() -> list[Tensor]:
        seen.clear()
        return train(also=F.silu, look=look)

    with done_by(silu, "silu", "CPU"):
        session = as_plainly(program, BUDGET, "ram", moves="joint", grow=True)
    assert wide[0] > 0 and all("aten::silu" in why and "cannot be met" in why for why in told)
    assert session.stats.growths == session.stats.mapped_ops == 0
    assert session.planned_iterations >= STEPS - LEARNT and session.unplanned == ()


def test_what_cannot_be_made_when_most_is_gone_is_found_out_before_it_is_trusted(monkeypatch):
    """Each can be made again right after it was dropped, but not when what it was made from has gone."""
    columns = engine_plan.remake_columns

    def without_activations(iteration, *about):
        made = columns(iteration, *about)
        named = iteration.recorded.trace.ops
        return {**made, "kept": [op for op in made["kept"] if named[op].name != "aten::relu"]}

    monkeypatch.setattr(engine_plan, "remake_columns", without_activations)
    session = as_plainly(lambda: train("in time"), BUDGET, "ram", moves="joint")
    assert any("aten::linear" in why for why in session.not_made_again)
    assert_within(session)

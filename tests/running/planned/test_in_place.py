"""Outputs take the place of inputs that die: within the budget, to the same bits, and whatever is read after all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.running.scripts.record import record
from memfit.running.session import Session
from running.plainly import same_bits
from running.planned.kernels import done_by
from running.planned.networks import WORKS, Foreign, Work, activated
from running.planned.training import LEARNT, hand_nothing_over, inside, train, trained_inside

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("what is handed over is counted"),
]
STEPS = 14
LAYERS = 6
ODD = 11  # the step in which something is read that dies in the others


class Normed(nn.Module):
    """Convolutions whose norms' results die in an activation; those of one of them are shown."""

    def __init__(self, width: int = 8, layers: int = LAYERS) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)
        self.activation: Callable[[Tensor], Tensor] = torch.tanh
        self.look_before: Callable[[Tensor], object] = lambda _: None
        self.look: Callable[[Tensor], object] = lambda _: None

    def forward(self, x: Tensor) -> Tensor:
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(x))
            if number == len(self.convs) - 2:
                self.look_before(y)
            x = self.activation(y)
            if number == len(self.convs) - 2:
                self.look(y)
            del y
        return self.head(x.mean((2, 3)))


NORMED = Work(Normed, lambda size: torch.randn(size, 8, 16, 16), 32)
"""The results of its norms are made again by norms, which leave their statistics as they are then."""


def test_outputs_take_the_places_of_dying_inputs_in_every_iteration_of_a_plan():
    session, stats = trained_inside(NORMED, "swap", "60%", STEPS)
    for before, after in zip(stats[LEARNT:], stats[LEARNT + 1 :], strict=False):
        assert after.handovers - before.handovers >= 2
        assert after.bytes_handed_over - before.bytes_handed_over >= 2 * 4 * 32 * 8 * 16 * 16
    assert stats[-1].plan_mismatches == stats[-1].derailments == stats[-1].recomputations == 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.long
@pytest.mark.parametrize("moves", ["swap", "recompute", "joint"])
@pytest.mark.parametrize("name", [name for name in WORKS if name not in ("attentive", "masked")])
def test_what_is_handed_over_goes_with_swaps_and_drops(name, moves):
    session, stats = trained_inside(WORKS[name], moves, "60%", STEPS)
    assert stats[-1].handovers > stats[-2].handovers
    assert stats[-1].plan_mismatches == stats[-1].derailments == stats[-1].failed_recomputations == 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


def copied_bytes() -> int:
    """Return what a plan copies out of a network without convolutions, which need more on some processors."""
    _, stats = trained_inside(WORKS["embedding"], "swap", "60%", STEPS)
    assert stats[-1].plan_mismatches == 0
    return stats[-1].bytes_out - stats[-2].bytes_out


def test_a_plan_with_handovers_copies_less(monkeypatch):
    copied = copied_bytes()
    hand_nothing_over(monkeypatch)
    assert 0 < copied < copied_bytes()


LOOKS = {
    "kept": lambda y, seen: seen.append(y.detach()),
    "summed": lambda y, seen: seen.append(y.detach().sum()),
    "copied by numpy": lambda y, seen: seen.append(torch.from_numpy(y.detach().numpy().copy())),
    "written to": lambda y, seen: seen.append(y.detach().mul_(2)),
    "a part of it": lambda y, seen: seen.append(y.detach()[3:5, 2]),
}


def train_and_look(look: Callable[[Tensor, list[Tensor]], object]) -> list[Tensor]:
    """Train, with a look at what dies in a single step, and return everything that was seen too."""
    seen: list[Tensor] = []
    made: list[Normed] = []

    def network() -> Normed:
        made.append(Normed())
        return made[-1]

    def after(step: int) -> None:
        made[-1].look = (lambda y: look(y, seen)) if step + 1 == ODD else lambda _: None

    learnt = train(Work(network, NORMED.inputs, NORMED.batch), STEPS, after)
    return [*learnt, *(one.clone() for one in seen)]


@pytest.mark.long
@pytest.mark.parametrize("how", LOOKS)
@pytest.mark.parametrize("moves", ["swap", "joint"])
def test_what_was_handed_over_is_made_again_when_it_is_read_after_all(how, moves):
    plain = train_and_look(LOOKS[how])
    with inside(moves, "60%") as session:
        limited = train_and_look(LOOKS[how])
        stats = session.stats
    assert same_bits(plain, limited)
    assert stats.recomputations > 0 and stats.failed_recomputations == 0 and stats.handovers > 0


def handovers_in(step: Callable[[Tensor], object]) -> list[str]:
    """Return the operators of an iteration in which an output may lie over an input."""
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    trace = record(lambda: step(x @ x).sum())  # what an op makes for nobody is not looked at
    return [trace.ops[each.op].name for each in trace.handovers]


def test_operators_whose_output_may_lie_over_an_input_are_found():
    assert handovers_in(torch.tanh) == ["aten::tanh"]
    assert handovers_in(lambda x: x.softmax(-1)) == ["aten::softmax.int"]
    assert handovers_in(lambda x: x + torch.ones(64, 64)) == ["aten::add.Tensor"] * 2  # over either of them
    assert handovers_in(lambda x: x.t().relu()) == ["aten::relu"]  # its output has its layout


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.add(x.t()),
        lambda x: torch.tanh(x[:32]),
        lambda x: torch.tanh(x[:, ::2]),
        lambda x: x.expand(2, 64, 64).tanh(),
        lambda x: x.cumsum(0),
        lambda x: x.tanh_(),
        lambda x: torch.div(x.int(), 2),
    ],
)
def test_an_input_that_lies_otherwise_than_the_output_takes_no_part(step):
    assert handovers_in(step) == []


def test_an_output_that_comes_out_different_takes_no_place():
    calls: list[int] = []

    def counting(x: Tensor) -> Tensor:
        calls.append(0)
        return torch.sigmoid(x).add_(len(calls))

    with done_by(counting, "silu", "CPU"):
        assert handovers_in(lambda x: F.silu(x.view(16, 256))) == []
    assert len(calls) == 3  # in both runs of the iteration, and when it was tried


def test_what_cannot_be_made_again_gives_no_place():
    session, stats = trained_inside(activated(Foreign), "swap", "50%", STEPS)
    plan = session.compressed_plan
    names = {plan.trace().ops[op].name for op in plan.givers}
    assert names and "aten::tanh" not in names
    assert session.not_made_again == () and stats[-1].plan_mismatches == 0 < stats[-1].handovers


@pytest.mark.long
def test_what_does_not_give_its_place_is_told_and_not_asked_again():
    made: list[Normed] = []

    def network() -> Normed:
        made.append(Normed())
        return made[-1]

    def after(step: int) -> None:
        made[-1].look_before = (lambda y: y.data_ptr()) if step >= LEARNT else lambda _: None  # it stays where it is

    work = Work(network, NORMED.inputs, NORMED.batch)
    plain = train(work, STEPS + 4, after)
    with inside("swap", "60%") as session:
        mismatches: list[int] = []

        def note(step: int) -> None:
            after(step)
            mismatches.append(session.stats.plan_mismatches)

        limited = train(work, STEPS + 4, note)
        givers = len(session.compressed_plan.givers)
    assert same_bits(plain, limited)
    assert [why for why in session.not_made_again if why.endswith("it did not give its place to an output")]
    assert givers > 0 and mismatches[LEARNT] == 0 < mismatches[-1] == mismatches[-2]


def test_an_op_that_fails_after_its_output_took_a_place_leaves_its_input_as_it_was():
    calls, failed = [0], list[int]()

    def forgiving(y: Tensor) -> Tensor:
        try:
            return torch.tanh(y)
        except ArithmeticError:
            return y * 0.5  # reads what has given its place

    def tanh(x: Tensor) -> Tensor:
        out = torch.sigmoid(x)
        calls[0] += 1
        if calls[0] == LAYERS and not failed:
            failed.append(0)
            raise ArithmeticError("not this time")
        return out

    def network() -> Normed:
        failed.append(0)
        net = Normed()
        net.activation = forgiving
        return net

    def after(step: int) -> None:
        calls[0] = 0
        if step + 1 == ODD:
            failed.clear()

    work = Work(network, NORMED.inputs, NORMED.batch)
    with done_by(tanh, "tanh", "CPU"):
        plain = train(work, STEPS, after)
        with inside("swap", "60%") as session:
            limited = train(work, STEPS, after)
            stats = session.stats
    assert same_bits(plain, limited) and failed == [0]
    assert stats.handovers > 0 and stats.recomputations > 0 and stats.failed_recomputations == 0


def test_trials_count_for_nothing():
    def program() -> None:
        torch.manual_seed(0)
        net = Normed()
        for _ in range(2):
            net(torch.randn(8, 8, 16, 16)).square().mean().backward()

    figures = []
    for records in (True, False):
        with Session(None, "ram", device="cpu", record=records) as session:
            program()
            stats = session.stats
        figures.append((stats.ops, stats.allocations, stats.live_bytes, stats.peak_live_bytes, stats.recomputations))
    assert figures[0] == figures[1]

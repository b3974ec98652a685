"""Whatever a program does while storages are dropped: the same bits, and what is asked for is made again on demand."""

from __future__ import annotations

import copy
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.running.session import Session
from running.helpers_training import Failed, Fails
from running.plainly import same_bits
from running.planned.networks import CLASSES, Convolution
from running.planned.training import SLOW, everything

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("what plans drop"),
]
BLOCKS = 6


def pickled(tensor: Tensor) -> Tensor:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    stream.seek(0)
    loaded: Tensor = torch.load(stream)
    return loaded


def address(tensor: Tensor) -> Tensor:
    assert tensor.data_ptr() % 16 == 0
    return tensor.detach().clone()


def through_a_fork(tensor: Tensor) -> Tensor:
    """Return the hash of the bytes as a forked child sees them."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, hashlib.sha256(tensor.detach().numpy().tobytes()).digest())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        digest = stream.read()
    os.wait()
    return torch.tensor(list(digest))


READS: dict[str, Callable[[Tensor], Tensor]] = {
    "deepcopy": lambda tensor: copy.deepcopy(tensor.detach()),
    "pickle": pickled,
    "numpy": lambda tensor: torch.from_numpy(tensor.detach().numpy().copy()),
    "data_ptr": address,
    "list": lambda tensor: torch.tensor(tensor.detach().flatten()[:5].tolist()),
    "an op": lambda tensor: tensor.detach() * 2,
    "a view": lambda tensor: tensor.detach().flatten(1)[:, 3:7].contiguous(),
    "fork": through_a_fork,
}
EVENTS = ("evaluate", "skip a layer", "another batch", "fail in forward", "fail in backward", "gradients", "hook",
          "retain", "write to a weight", "extra op", "extra view")  # fmt: skip


@dataclass
class Program:
    """Trains through events, one a step, and keeps all that a user could see.

    The blocks' outputs are kept from the forward to the end of the step: those that a plan drops are read in between.
    """

    events: Sequence[str]
    session: Session | None = None
    end_at: int | None = None  # the session ends in the midst of this step
    remade: list[int] = field(default_factory=list)  # of each read, how many storages it had made again
    seen: list[Tensor] = field(default_factory=list)
    _contexts: ExitStack = field(default_factory=ExitStack)

    def run(self) -> list[Tensor]:
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Convolution(inputs, 16) for inputs in (3, *[16] * (BLOCKS - 1)))
        self.head = nn.Linear(16, CLASSES)
        self.net = nn.ModuleList([self.blocks, self.head])
        optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        for step, event in enumerate(self.events):
            optimizer.zero_grad()
            try:
                self.step(event, step)
            except Failed:
                continue
            optimizer.step()
        return [*(tensor.detach().clone() for tensor in self.seen), *everything(self.net, optimizer)]

    def step(self, event: str, step: int) -> None:
        if event == "evaluate":
            self.evaluate()
        if event == "write to a weight":
            self.head.weight.data.mul_(0.5)
        outputs, loss = self.forward(12 if event == "another batch" else 16, event)
        if event in READS:
            self.seen += [self.read(READS[event], output) for output in outputs[1:]]
        if event == "hook":
            outputs[2].register_hook(lambda gradient: gradient * 0.5)
        if event == "retain":
            loss.backward(retain_graph=True)
        if step == self.end_at:
            self._contexts.close()
        loss.backward()
        if event == "gradients":
            self.seen += [parameter.grad * 2 for parameter in self.net.parameters()]
        self.seen.append(loss)

    def forward(self, size: int, event: str) -> tuple[list[Tensor], Tensor]:
        outputs = [torch.randn(size, 3, 16, 16)]
        for number, block in enumerate(self.blocks):
            if event == "fail in forward" and number == 4:
                raise Failed
            if event != "skip a layer" or number != 3:
                outputs.append(block(outputs[-1]))
        if event == "extra op":
            outputs[-1] = outputs[-1] + outputs[2].mean()
        if event == "extra view":
            outputs[2].detach()
        if event == "fail in backward":
            outputs[-1] = Fails.apply(outputs[-1])
        logits = self.head(outputs[-1].mean((2, 3)))
        return outputs, F.cross_entropy(logits, torch.arange(size) % CLASSES)

    def evaluate(self) -> None:
        self.net.eval()
        with torch.no_grad():
            self.seen.append(self.forward(32, "evaluate")[1])
        self.net.train()

    def read(self, way: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
        before = self.session.stats.recomputations if self.session else 0
        found = way(tensor).flatten()[::67].clone()  # little is kept: otherwise the plan would have no room
        self.remade.append(self.session.stats.recomputations - before if self.session else 0)
        return found

    def inside(self, moves: str, budget: str) -> list[Tensor]:
        """Run it in a session."""
        self.session = Session(budget, SLOW, device="cpu", moves=moves)
        with self._contexts:
            self._contexts.enter_context(self.session)
            return self.run()


QUIET = ("train",) * 9
PLANNED = len(QUIET)  # the first step in which drops are no longer tried


def compared(events: Sequence[str], moves: str, budget: str = "60%", end_at: int | None = None) -> Program:
    plain = Program(events).run()
    program = Program(events, end_at=end_at)
    limited = program.inside(moves, budget)
    assert same_bits(plain, limited), "the session changed a bit"
    stats = program.session.stats
    assert stats.discards > 0 and stats.failed_recomputations == 0
    assert stats.peak_footprint_bytes <= stats.budget_bytes
    return program


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("read", READS)
def test_a_dropped_tensor_that_is_read_before_its_return_is_made_again_then(read):
    program = compared([*QUIET, read, "train", "train", read, *QUIET], "recompute", "50%")
    first, second = program.remade[:BLOCKS], program.remade[BLOCKS:]
    if read != "fork":  # it is the child that makes it again
        assert sum(first) > 0 and sum(second) > 0


@pytest.mark.long
@pytest.mark.parametrize("moves", ["recompute", pytest.param("joint", marks=pytest.mark.slow)])
@pytest.mark.parametrize("event", EVENTS)
def test_what_the_program_does_otherwise_changes_no_bit_and_the_plan_is_taken_up_again(event, moves):
    program = compared([*QUIET, event, "train", event, event, *QUIET], moves)
    stats = program.session.stats
    assert stats.recomputations > 2 * stats.plans


@pytest.mark.long
@pytest.mark.parametrize("moves", ["recompute", "joint"])
def test_a_session_that_ends_between_a_drop_and_its_return_gives_the_bytes_back(moves):
    program = compared([*QUIET, "train", "train"], moves, end_at=PLANNED)
    assert program.session.stats.discards > program.session.stats.recomputations - len(program.session.planned.dropped)

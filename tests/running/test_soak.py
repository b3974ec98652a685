"""Threads that each train a model of their own, session after session, for as long as MEMFIT_SOAK_SECONDS says."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.running import engine
from running.plainly import descend
from running.side_by_side import at_once, hurried

SECONDS = float(os.environ.get("MEMFIT_SOAK_SECONDS", "20"))
STEPS = 12
BUDGETS = (None, "100%", 1 << 20, 3 << 19, 2 << 20, 4 << 20)
Step = Callable[[], torch.Tensor]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + int(3 * SECONDS)), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def in_a_hurry() -> Iterator[None]:
    with hurried(1e-5):
        yield


class Filled:
    """A module's parameters and inputs from a generator of their own: torch's belongs to all threads."""

    def __init__(self, seed: int, module: torch.nn.Module) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.module = module
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(0.05 * self.random(*parameter.shape))

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)


def perceptron(seed: int) -> tuple[torch.nn.Module, Step]:
    made = Filled(seed, torch.nn.Sequential(*(m for _ in range(4) for m in (torch.nn.Linear(96, 96), torch.nn.GELU()))))
    return made.module, lambda: made.module(made.random(64, 96)).square().mean()


def convolutions(seed: int) -> tuple[torch.nn.Module, Step]:
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    made = Filled(seed, torch.nn.Sequential(*layers))
    return made.module, lambda: made.module(made.random(8, 3, 20, 20)).square().mean()


def sequences(seed: int) -> tuple[torch.nn.Module, Step]:
    made = Filled(seed, torch.nn.LSTM(24, 32, 2))

    def step() -> torch.Tensor:
        packed = pack_sequence([made.random(length, 24) for length in (17, 11, 5)])
        return made.module(packed)[0].data.square().mean()

    return made.module, step


def checkpointed(seed: int) -> tuple[torch.nn.Module, Step]:
    made = Filled(seed, torch.nn.Sequential(*(torch.nn.Linear(80, 80) for _ in range(5))))

    def step() -> torch.Tensor:
        x = made.random(48, 80).requires_grad_()
        for layer in made.module:
            x = checkpoint(layer, torch.tanh(x), use_reentrant=False, preserve_rng_state=False)
        return x.square().mean()

    return made.module, step


KINDS = (perceptron, convolutions, sequences, checkpointed)


def train(kind: Callable[[int], tuple[torch.nn.Module, Step]], seed: int) -> list[object]:
    module, step = kind(seed)
    optimizer = (torch.optim.Adam if seed % 2 else torch.optim.SGD)(module.parameters(), 1e-2)
    losses = [loss.item() for loss in descend(optimizer, step, STEPS)]
    return [*losses, *(parameter.double().sum().item() for parameter in module.parameters())]


def test_threads_that_train_session_after_session_compute_what_they_do_alone():
    jobs = [partial(train, kind, i) for i, kind in enumerate(KINDS)]
    plain = [job() for job in jobs]
    assert at_once(jobs) == plain
    chosen, end, swapped = random.Random(0), time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        with memfit.session(chosen.choice(BUDGETS), chosen.choice(("ram", "disk"))) as session:
            for _ in range(chosen.randint(1, 3)):
                assert at_once(jobs) == plain
            assert engine.load().in_use() == [0, 0, 0]
        swapped += session.stats.bytes_out
    assert swapped > 0

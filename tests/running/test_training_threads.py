"""Several threads that each train a model of their own, in one session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

import memfit
from memfit.running import engine
from running.plainly import descend
from running.side_by_side import at_once, hurried, repeated

pytestmark = pytest.mark.timeout(120)
THREADS = 4


@pytest.fixture(autouse=True)
def in_a_hurry() -> Iterator[None]:
    with hurried(1e-6):
        yield


def train(seed: int, width: int = 64, steps: int = 15) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    net, x = torch.nn.Linear(width, width), torch.randn(width, width, generator=generator)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.01 * seed)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    return [loss.item() for loss in descend(optimizer, lambda: net(x).square().mean(), steps)]


JOBS = [partial(train, seed) for seed in range(THREADS)]


@pytest.mark.long
@pytest.mark.parametrize("budget", [None, 400_000])
def test_threads_that_train_at_once_compute_what_they_do_alone(budget):
    plain = [job() for job in JOBS]
    for _ in range(6):
        with memfit.session(budget, "ram"):
            assert at_once(JOBS) == plain
            assert engine.load().in_use() == [0, 0, 0]


@pytest.mark.long
def test_a_share_takes_effect_while_other_threads_are_in_the_midst_of_ops():
    plain = [job() for job in JOBS]
    for _ in range(6):
        with memfit.session("100%", "ram"):
            assert at_once(JOBS) == plain
            assert engine.load().in_use() == [0, 0, 0]


def test_a_tuple_in_the_making_is_left_alone_when_tensors_are_looked_for():
    """Python's own `tuple` fails when anybody else has a reference to what it has not finished."""
    tensors = [torch.empty(1) for _ in range(400)]  # the longer the search takes

    def build() -> None:
        for _ in range(100):
            tuple(i for i in range(40))

    with repeated(build, build), memfit.session(1 << 24, "ram"):
        for _ in range(30):
            engine.load().adopt_visible()
    assert len(tensors) == 400


def test_a_storage_that_only_its_python_object_holds_does_not_stop_all_threads():
    """The interpreter is needed to keep such an object alive: whoever has the engine's mutex must not wait for it."""
    with memfit.session(1 << 20, "ram"):
        storages = [torch.full((1 << 14,), float(i)).untyped_storage() for i in range(8)]
        done = threading.Event()
        rounds = 0

        def press() -> None:
            nonlocal rounds
            try:
                for _ in range(60):
                    a = torch.ones(128, 256)
                    (a @ a.T).sum()
                    torch.ones(1 << 16), torch.ones(1 << 16)
                    rounds += 1
            finally:
                done.set()

        thread = threading.Thread(target=press, daemon=True)
        thread.start()
        while not done.is_set():
            torch.empty(4)  # asks for the engine's mutex with the interpreter in hand
        thread.join()
        values = [torch.tensor([], dtype=torch.float32).set_(storage)[0].item() for storage in storages]
    assert rounds == 60  # none was refused: such a storage can leave like any other
    assert values == [float(i) for i in range(8)]
    assert [torch.tensor([], dtype=torch.float32).set_(storage)[9].item() for storage in storages] == values

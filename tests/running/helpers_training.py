"""Small training programs and a log of everything they compute, for tests that compare runs bit by bit."""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.ir import Trace
from memfit.planning.lifetimes import minimum_budget, peak_live
from memfit.running import engine
from running.plainly import descend

torch.set_num_threads(1)

STEPS = 4


@contextmanager
def others_hidden() -> Iterator[None]:
    """A session adopts every tensor Python can see: hide those of other tests, and find a session left active."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
    assert not engine.load().active()


def plain_bytes(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy().tobytes()


class Log:
    """Hashes of the bytes of every tensor it is shown. `read` gets at them without an op."""

    def __init__(self, read: Callable[[torch.UntypedStorage], bytes] = plain_bytes) -> None:
        self.rows: list[tuple[str, str]] = []
        self._read = read

    def note(self, name: str, tensor: Tensor) -> None:
        data = self._read(tensor.untyped_storage())
        self.rows.append((name, hashlib.sha1(data).hexdigest()))

    def training(self, loss: Tensor, module: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self.note("loss", loss)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.note(name, tensor)
            if tensor.grad is not None:
                self.note(f"gradient of {name}", tensor.grad)
        for optimizer in optimizers:
            for index, state in enumerate(optimizer.state.values()):
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        self.note(f"{key} of parameter {index}", value)


def batches(count: int, *shape: int) -> Iterator[Tensor]:
    for _ in range(count):
        yield torch.randn(*shape)


class Failed(Exception):
    """What a backward pass with `Fails` in it raises."""


class Fails(torch.autograd.Function):
    """The identity, whose gradient cannot be had."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise Failed


def convnet(width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(width * 16, 10),
    )


def cnn(log: Log) -> None:
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_of() -> Tensor:
        return F.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.randint(10, (8,)))

    for loss in descend(optimizer, loss_of, STEPS):
        log.training(loss, model, optimizer)


class Block(nn.Module):
    """A transformer block on 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm(x)))


def transformer(log: Log) -> None:
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    def loss_of() -> Tensor:
        tokens = torch.randint(50, (8, 17))
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    for loss in descend(optimizer, loss_of, STEPS):
        log.training(loss, model, optimizer)


def mlp(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def accumulation(log: Log) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        for x in batches(3, 32, 64):
            loss = model(x).square().mean() / 3
            loss.backward()
        optimizer.step()
        log.training(loss, model, optimizer)


def gan(log: Log) -> None:
    generator, discriminator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)), mlp()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    for real in batches(STEPS, 32, 64):
        fake = generator(torch.randn(32, 16))
        optimizer_d.zero_grad()
        loss_d = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
        loss_d.backward()
        optimizer_d.step()
        log.training(loss_d, discriminator, optimizer_d)
        optimizer_g.zero_grad()
        loss_g = F.softplus(-discriminator(fake)).mean()
        loss_g.backward()
        optimizer_g.step()
        log.training(loss_g, generator, optimizer_g)


def moving_average(log: Log) -> None:
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, _: old.lerp(new, 0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    for loss in descend(optimizer, lambda: model(torch.randn(32, 64)).square().mean(), STEPS):
        average.update_parameters(model)
        log.training(loss, model, optimizer)
        log.training(loss, average)


def scheduled_and_clipped(log: Log) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS)
    for x in batches(STEPS, 32, 64):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        log.note("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        optimizer.step()
        scheduler.step()
        log.training(loss, model, optimizer)


def autocast(log: Log) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of() -> Tensor:
        x = torch.randn(32, 64)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return model(x).float().square().mean()

    for loss in descend(optimizer, loss_of, STEPS):
        log.training(loss, model, optimizer)


def gradient_penalty(log: Log) -> None:
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)

    def loss_of() -> Tensor:
        x = torch.randn(32, 64).requires_grad_()
        score = model(x).square().mean()
        (gradient,) = torch.autograd.grad(score, x, create_graph=True)
        return score + (gradient.norm(dim=1) - 1).square().mean()

    for loss in descend(optimizer, loss_of, STEPS):
        log.training(loss, model, optimizer)


def checkpointed(log: Log) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def loss_of() -> Tensor:
        hidden = checkpoint(model[:2], torch.randn(32, 64).requires_grad_(), use_reentrant=False)
        return checkpoint(lambda h: F.dropout(model[2:](h), 0.3), hidden, use_reentrant=False).square().mean()

    for loss in descend(optimizer, loss_of, STEPS):
        log.training(loss, model, optimizer)


def second_order(log: Log) -> None:
    model = mlp(32)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3)
    x = torch.randn(32, 32)
    for _ in range(STEPS):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        log.training(optimizer.step(closure), model)


def sparse_and_tied(log: Log) -> None:
    embedding = nn.Embedding(200, 32, sparse=True)
    recurrent = nn.LSTM(32, 32, num_layers=2, batch_first=True, dropout=0.1)
    sparse = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
    dense = torch.optim.Adagrad(recurrent.parameters(), lr=1e-2)
    state = None
    for _ in range(STEPS):
        tokens = torch.randint(200, (4, 9))
        sparse.zero_grad()
        dense.zero_grad()
        hidden, state = recurrent(embedding(tokens[:, :-1]), state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy((hidden @ embedding.weight.detach().T).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        sparse.step()
        dense.step()
        log.note("loss", loss)
        log.training(loss, recurrent, dense)
        log.note("embedding", embedding.weight)


Program = Callable[[Log], None]
PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        cnn,
        transformer,
        accumulation,
        gan,
        moving_average,
        scheduled_and_clipped,
        autocast,
        gradient_penalty,
        checkpointed,
        second_order,
        sparse_and_tied,
    )
}


def run_plainly(program: Program) -> Log:
    torch.manual_seed(0)
    log = Log()
    program(log)
    return log


def run_inside(session: memfit.Session, program: Program) -> Log:
    """Run `program` in a session that has been entered."""
    torch.manual_seed(0)
    log = Log(session.read_bytes)
    program(log)
    return log


def run_in_session(program: Program, budget: str | int | None, tier: object) -> tuple[Log, memfit.Session]:
    with memfit.session(budget, tier) as session:
        return run_inside(session, program), session


@dataclass(frozen=True)
class Known:
    """What a program computes when run plainly, and what its trace asks for."""

    rows: list[tuple[str, str]]
    trace: Trace
    peak_bytes: int
    minimum_bytes: int

    @property
    def tight_bytes(self) -> int:
        """A budget with some room for holes above the smallest feasible one."""
        return self.minimum_bytes * 11 // 10

    @property
    def percent(self) -> int:
        """60, or what a tight budget is of the peak if that is more."""
        return max(60, -(-100 * self.tight_bytes // self.peak_bytes))

    def budget(self, kind: str) -> int | str:
        return self.tight_bytes if kind == "bytes" else f"{self.percent}%"


@functools.cache
def known(program: Program) -> Known:
    rows = run_plainly(program).rows
    trace = run_in_session(program, None, "ram")[1].trace
    return Known(rows, trace, peak_live(trace, aligned=True)[0], minimum_budget(trace)[0])

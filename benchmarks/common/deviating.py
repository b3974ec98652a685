"""Training loops that do not do the same in every step: each is a small network, and what a step does to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


@dataclass
class Training:
    """A convolutional network in training.

    Attributes:
        net: The network.
        optimizer: What steps it.
        seen: What a user could see: losses, logs and figures of evaluations.
    """

    net: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    seen: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, width: int = 24, depth: int = 6) -> Training:
        """Make a network of so many blocks of so many channels, from a fixed seed."""
        torch.manual_seed(0)
        blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width if number else 3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for number in range(depth)
        )
        net = nn.ModuleDict({"blocks": blocks, "head": nn.Linear(width, CLASSES)})
        return cls(net, torch.optim.Adam(net.parameters(), lr=1e-3))

    def loss(self, images: int = 16, size: int = 24, skipped: int | None = None) -> Tensor:
        """Return the loss of a fresh batch, without one of the blocks if one is to be `skipped`."""
        x = torch.randn(images, 3, size, size)
        for number, block in enumerate(self.net["blocks"].children()):
            x = x if number == skipped else block(x)
        return F.cross_entropy(self.net["head"](x.mean((2, 3))), torch.arange(images) % CLASSES)

    def step(self, loss: Tensor, after_backward: Callable[[], None] = lambda: None) -> None:
        """Train with a loss."""
        self.optimizer.zero_grad()
        loss.backward()
        after_backward()
        self.optimizer.step()

    def evaluate(self) -> None:
        """Look at four other batches."""
        self.net.eval()
        with torch.no_grad():
            self.seen += [self.loss(32).clone() for _ in range(4)]
        self.net.train()

    def log_gradients(self) -> None:
        """Note the gradients' norms."""
        self.seen += [parameter.grad.norm() for parameter in self.net.parameters() if parameter.grad is not None]

    def clip(self) -> None:
        """Let the gradients' norm be at most 1."""
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)

    def everything(self) -> list[Tensor]:
        """Return all that is seen, the network and the optimizer's state."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [tensor.detach().clone() for tensor in (*self.seen, *self.net.state_dict().values(), *moments)]


def _plain(training: Training, _: int) -> None:
    training.step(training.loss())


def _logs_the_loss(training: Training, step: int) -> None:
    loss = training.loss()
    training.step(loss)
    if step % 5 == 0:
        training.seen.append(torch.tensor(loss.item()))


def _logs_gradients(training: Training, step: int) -> None:
    training.step(training.loss(), training.log_gradients if step % 5 == 0 else lambda: None)


def _keeps_losses(training: Training, _: int) -> None:
    loss = training.loss()
    training.step(loss)
    training.seen.append(loss.detach())


def _evaluates(training: Training, step: int) -> None:
    training.step(training.loss())
    if step % 10 == 9:
        training.evaluate()


def _last_batch_is_smaller(training: Training, step: int) -> None:
    training.step(training.loss(images=10 if step % 8 == 7 else 16))


def _alternates(training: Training, step: int) -> None:
    training.step(training.loss(images=16 if step % 2 else 12))


def _clips_now_and_then(training: Training, step: int) -> None:
    training.step(training.loss(), training.clip if step % 4 == 0 else lambda: None)


def _skips_a_layer(training: Training, step: int) -> None:
    training.step(training.loss(skipped=3 if step % 5 == 0 else None))


def _accumulates(training: Training, _: int) -> None:
    (training.loss() / 2).backward()
    training.step(training.loss() / 2)


LOOPS: Mapping[str, Callable[[Training, int], None]] = {
    "the same in every step": _plain,
    "losses are kept": _keeps_losses,
    "a loss is logged, every 5th step": _logs_the_loss,
    "gradients are logged, every 5th": _logs_gradients,
    "gradients are clipped, every 4th": _clips_now_and_then,
    "evaluation, every 10th": _evaluates,
    "a smaller batch, every 8th": _last_batch_is_smaller,
    "two sizes of batch by turns": _alternates,
    "a layer is left out, every 5th": _skips_a_layer,
    "two backward passes a step": _accumulates,
}


def trained(
    name: str, steps: int, after: Callable[[int], None] = lambda step: None, *, width: int = 24, depth: int = 6
) -> list[Tensor]:
    """Train by a loop of this name, and return everything; `after` is told of each step."""
    training = Training.of(width, depth)
    for step in range(steps):
        LOOPS[name](training, step)
        after(step)
    return training.everything()

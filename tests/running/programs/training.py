"""Trainings drawn at random: layers of cheap ops on large tensors, in surroundings that a re-run has to restore.

Each is known by its seed. `repr` shows it as an expression, from which parts can be taken until it is small.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from running.programs.bodies import BODIES, Layer
from running.programs.surroundings import CALLS, CONTEXTS, REENTRANT

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=True),
    "adamw, fused": lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True),
    "adam, one by one": lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=False),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-2),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9, foreach=True),
}
BACKWARD = ("", "", "", "retained", "kept", "clears late", "accumulates", "clips", "evaluates")
BY_GRAD = ("penalty", "by grad")  # styles that torch has no reentrant checkpoints for
EVENTS = ("skip", "evaluate", "half", "read", "keep", "copy", "retain", "numpy", "other context", "raise")
AROUND = [name for name in CONTEXTS if name != "seeded"]  # with which each step would be like another
CHEAP = ("gelu", "gelu by tanh", "softmax", "layer norm", "dropout", "chain", "silu gate", "rms norm", "leaky")
"""Bodies of which a plan likes to drop what they save: with some of these there is one for most budgets."""
LEARNT = 5  # steps after which a plan is in force


class Part(NamedTuple):
    """One layer: what it computes, how it is called, and in which context."""

    body: str
    call: str = ""
    context: str = ""


class Raised(Exception):
    """What a step is broken off by."""


@dataclass(frozen=True)
class Training:
    """Some steps of training; all that it does is in its fields."""

    parts: tuple[Part, ...]
    seed: int = 0
    optimizer: str = "sgd"
    style: str = ""
    forward_context: str = ""
    step_context: str = ""
    shape: tuple[int, int, int] = (16, 6, 16)
    events: tuple[str, ...] = ()  # by step
    steps: int = 14

    def __call__(self) -> list[Any]:
        """Train, and return everything that can be seen of it."""
        return Trained(self).run()


def drawn(seed: int) -> Training:
    """Return the training of this seed."""
    draw = random.Random(seed)
    parts = [_part(draw) for _ in range(draw.randint(3, 6))] + [Part(draw.choice(CHEAP)) for _ in range(4)]
    draw.shuffle(parts)
    events = [draw.choice(EVENTS) if draw.random() < 0.3 else "" for _ in range(5)] if draw.random() < 0.25 else []
    reentrant = any(part.call in REENTRANT for part in parts)
    return Training(
        tuple(parts), seed, draw.choice(list(OPTIMIZERS)), draw.choice(BACKWARD if reentrant else BACKWARD + BY_GRAD),
        draw.choice(list(CONTEXTS)) if draw.random() < 0.3 else "",
        draw.choice(AROUND) if draw.random() < 0.2 else "",
        (draw.choice([8, 16, 24]), draw.choice([4, 6]), draw.choice([8, 16])),
        (*[""] * LEARNT, *events) if events else (),
        LEARNT + 5,
    )  # fmt: skip


def _part(draw: random.Random) -> Part:
    call = draw.choice(list(CALLS)) if draw.random() < 0.4 else draw.choice(["", "residual"])
    return Part(draw.choice(list(BODIES)), call, draw.choice(list(CONTEXTS)) if draw.random() < 0.4 else "")


class Trained:
    """A training on its way."""

    def __init__(self, training: Training) -> None:
        torch.manual_seed(training.seed)
        self.about, self.seen = training, list[Any]()
        self.batch, self.words, self.width = training.shape
        self.net = nn.ModuleList([*(Layer(part.body, self.width) for part in training.parts), nn.Linear(self.width, 5)])
        self.optimizer = OPTIMIZERS[training.optimizer](list(self.net.parameters()))
        self.held: list[Tensor] = []

    def run(self) -> list[Any]:
        for step in range(self.about.steps):
            event = self.about.events[step] if step < len(self.about.events) else ""
            with CONTEXTS[self.about.step_context](self.seen):
                loss = self.step(event)
            self.seen.append(loss.item())
        kept = [tensor.detach().clone() for tensor in self.held]
        return [*self.seen, *kept, *self.everything()]

    def everything(self) -> list[Any]:
        """Return weights, buffers, gradients, the optimizer's state and the generators'."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        found = [*self.net.state_dict().values(), *gradients, *(m for m in moments if isinstance(m, Tensor))]
        return [tensor.detach().clone() for tensor in found] + [torch.get_rng_state()]

    def step(self, event: str) -> Tensor:
        style = self.about.style
        if style != "clears late":
            self.optimizer.zero_grad()
        loss = self.descend(event)
        if style == "clips":
            self.seen.append(nn.utils.clip_grad_norm_(self.net.parameters(), 1.0).item())
        self.optimizer.step()
        if style == "kept":
            self.held = [loss]  # with its graph, until the next step's is made
            return loss.detach()
        return loss

    def descend(self, event: str) -> Tensor:
        """Make the gradients, in the training's style."""
        style = self.about.style
        if style == "evaluates" or event == "evaluate":
            with torch.no_grad():
                self.seen.append(self.forward(self.batch * 2 if event else self.batch, "").mean().item())
        if style == "accumulates":
            self.loss(event).backward()
        loss = self.loss(event)
        if style == "clears late":
            self.optimizer.zero_grad()
        if style == "retained" or event == "retain":
            loss.backward(retain_graph=True)
        if style == "by grad":
            self.by_grad(loss)
        else:
            loss.backward()
        return loss

    def by_grad(self, loss: Tensor) -> None:
        weights = list(self.net.parameters())
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient

    def loss(self, event: str) -> Tensor:
        y = self.forward(self.batch // 2 if event == "half" else self.batch, event)
        logits = self.net[-1](y.float().mean(1))
        loss = F.cross_entropy(logits, torch.arange(len(logits)) % 5)
        if self.about.style == "penalty":
            (gradient,) = torch.autograd.grad(loss, self.input, create_graph=True)
            loss = loss + gradient.float().square().sum()
        return loss

    def forward(self, batch: int, event: str) -> Tensor:
        x = torch.randn(batch, self.words, self.width, dtype=torch.float32)
        self.input = x = x.requires_grad_(self.about.style == "penalty")
        with CONTEXTS[self.about.forward_context](self.seen):
            for number, part in enumerate(self.about.parts):
                if event != "skip" or number != 1:
                    x = self.layer(number, part, x, event)
        if event == "raise":
            self.broken(x)
        return x

    def layer(self, number: int, part: Part, x: Tensor, event: str) -> Tensor:
        context = "hooks" if event == "other context" else part.context
        with CONTEXTS[context](self.seen):
            y = CALLS[part.call](self.net[number], x)
        if number == len(self.about.parts) // 2:
            self.note(event, y.detach())
        return y

    def note(self, event: str, middle: Tensor) -> None:
        if event == "read":
            self.seen.append(middle.flatten()[:8].tolist())
        if event == "numpy":
            self.seen.append(np.array(middle.float()).sum().item())
        if event == "keep":
            self.held.append(middle[:1])
        if event == "copy":
            self.held.append(middle.clone())

    def broken(self, x: Tensor) -> None:
        """Break off a backward pass in its midst."""

        def stop(gradient: Tensor) -> Tensor:
            raise Raised

        if x.requires_grad:
            hook = x.register_hook(stop)
            try:
                x.float().square().sum().backward(retain_graph=True)
            except Raised:
                self.seen.append("raised")
            hook.remove()

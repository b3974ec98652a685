"""Training by plans that make storages again, at fixed steps, compared bit by bit with the plain run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.common import waiting
from memfit import Stats
from memfit.machine import Link, Machine
from memfit.planning.handing_over import HandedOver
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.planned import drift, op_times
from memfit.running.planned.link import SessionLink
from memfit.running.planned.making import Making
from memfit.running.planned.recorded import Recorded
from memfit.running.session import Session
from running.plainly import descend, same_bits
from running.planned.networks import Work

SLOW = DisturbedTier("ram", link_bytes_per_second=1e8)
"""A link over which making again is worth while."""
LINK = Machine("slow", Link.of_bandwidth(0.1, latency_us=0.0), Link.of_bandwidth(0.1, latency_us=0.0))
BYTES_A_US = 4000
LEARNT = 5
"""Steps after which a plan is in force, a joint one too: one shows the optimizer, two are alike."""


def wait_for_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training wait for each plan, until the test ends."""
    monkeypatch.setattr(Making, "done", Making.done)  # which is put back
    waiting.wait_for_plans()


def plan_at_fixed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training wait for each plan, and have times and a link that no other job changes: the same plans."""
    wait_for_plans(monkeypatch)
    recorded = Recorded.of
    monkeypatch.setattr(drift, "_STALLED", 1 << 20)
    monkeypatch.setattr(drift, "_FASTER", 1 << 20)
    monkeypatch.setattr(op_times, "_IN_A_ROW", 1 << 20)
    monkeypatch.setattr(op_times, "_SAMPLES", 0)
    monkeypatch.setattr(SessionLink, "machine", lambda *_: LINK)
    monkeypatch.setattr(Recorded, "of", lambda *about: timed(recorded(*about)))


def hand_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make plans without in-place reuse."""
    monkeypatch.setattr("memfit.running.planned.recorded.hand_over", lambda trace, *_: HandedOver(trace))


def timed(recorded: Recorded | None) -> Recorded | None:
    """Return the iteration with ops that take a time for each byte of their operands."""
    if recorded is None:
        return None
    trace = recorded.trace
    sizes = [sum(trace.storages[s].size_bytes for s in {*op.reads, *op.writes}) for op in trace.ops]
    again_us = tuple(5 + size / BYTES_A_US for size in sizes)
    ops = tuple(replace(op, duration_us=10 + us) for op, us in zip(trace.ops, again_us, strict=True))
    return replace(recorded, trace=replace(trace, ops=ops), again_us=again_us)


def everything(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return whatever training leaves behind, the generator's state too."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*net.state_dict().values(), *moments)] + [torch.get_rng_state()]


def train(work: Work, steps: int, after: Callable[[int], object] = lambda step: None) -> list[Tensor]:
    """Train, and return everything; `after` is told of each step."""
    torch.manual_seed(0)
    net = work.network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for step, loss in enumerate(descend(optimizer, lambda: work.loss(net), steps)):
        losses.append(loss.item())
        after(step)
    return [torch.tensor(losses), *everything(net, optimizer)]


@contextmanager
def inside(
    moves: str, budget: str | int, tier: DisturbedTier = SLOW, *, measures: bool = False, grow: bool | None = None
) -> Iterator[Session]:
    """Run a `with` block in a session."""
    with Session(budget, tier, device="cpu", moves=moves, measures=measures, grow=grow) as session:
        yield session


def trained_inside(work: Work, moves: str, budget: str, steps: int) -> tuple[Session, list[Stats]]:
    """Train plainly and in a session, to the same bits; return the session and its figures after each step."""
    plain = train(work, steps)
    stats: list[Stats] = []
    with inside(moves, budget) as session:
        limited = train(work, steps, lambda step: stats.append(session.stats))
    assert same_bits(plain, limited), "the session changed a bit"
    return session, stats

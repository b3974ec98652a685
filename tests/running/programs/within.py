"""Runs a random training plainly, and by a plan that makes storages again, to the same bits.

Plans are made for a link so slow that running ops again costs less than copies; the link itself is not slow, so that a
run takes half a second.

PYTHONPATH=src:tests:. python -m running.programs.within SEED ... runs the trainings of these seeds, and makes what
differs small.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import memfit
from memfit import MemfitError, Session, Stats
from memfit.machine import Link, Machine
from memfit.planning.lifetimes import minimum_budget, peak_live
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.planned import engine_plan
from memfit.running.planned.link import SessionLink
from running.plainly import bytes_of
from running.planned.training import inside, plan_at_fixed_steps
from running.programs.reduce import reduced
from running.programs.surroundings import bare
from running.programs.training import Training, drawn

SHARES = ((0.6, 0.9), (0.75, 0.97))  # one budget of each, between the largest op's needs and the peak
MOVES = ("recompute", "recompute", "recompute", "joint")
LINKS = (1e5, 1e6, 1e7)  # bytes per second


@dataclass(frozen=True)
class Way:
    """How a session runs a training."""

    moves: str
    share: float
    link: float


def ways(seed: int) -> Iterator[Way]:
    """Draw how the training of this seed is run."""
    draw = random.Random(7 * seed)
    for low, high in SHARES:
        yield Way(draw.choice(MOVES), round(draw.uniform(low, high), 3), draw.choice(LINKS))


def plan_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans at fixed steps, by short searches."""
    plan_at_fixed_steps(monkeypatch)
    monkeypatch.setattr(engine_plan, "_LEAST_EFFORT", 0.01)
    monkeypatch.setattr(engine_plan, "_ROUNDS", 3)


def seen_of(training: Training) -> list[Any]:
    """Train, and return all that is seen of it as bytes, which no session looks at.

    What earlier trainings left is frozen too: a session looks at every object that the collector does.
    """
    gc.collect()
    gc.freeze()
    return frozen(training())


def frozen(values: list[Any]) -> list[Any]:
    """Return tensors as bytes, a wrapper as what it is around, and the rest as it is shown: a NaN is unlike itself."""
    return [
        (str(value.dtype), tuple(value.shape), bytes_of(value).numpy().tobytes()) if isinstance(value, Tensor)
        else repr(value)
        for value in map(bare, values)
    ]  # fmt: skip


def bounds(training: Training) -> tuple[int, int]:
    """Return the needs of an iteration's largest op, and the iteration's peak (bytes)."""
    with memfit.session(None, "ram", device="cpu", plan=False) as session:
        replace(training, steps=3, events=())()
    return minimum_budget(session.trace)[0], peak_live(session.trace, aligned=True)[0]


def run_within(
    training: Training, way: Way, between: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], Session]:
    """Train in a session; return what is seen, and the session."""
    link = Link.of_bandwidth(way.link / 1e9, latency_us=0.0)
    monkeypatch.setattr(SessionLink, "machine", lambda *_: Machine("slow", link, link))
    least, peak = between
    budget = int(least + way.share * (peak - least))
    with inside(way.moves, budget, DisturbedTier("ram"), grow=True) as session:
        values = training()
    return frozen(values), session


def check(training: Training, way: Way, plain: list[Any], monkeypatch: pytest.MonkeyPatch) -> Stats:
    """Train in a session to the bits of the plain run; return the session's figures."""
    seen, session = run_within(training, way, bounds(training), monkeypatch)
    assert seen == plain, f"the session changed a bit: {way}, {training}"
    assert session.stats.failed_recomputations == 0, f"a re-run came out different: {way}, {training}"
    return session.stats


def differs(training: Training, way: Way, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how a session differs from the plain run; "" if it does not, or if torch refuses the training."""
    try:
        plain = seen_of(training)
    except RuntimeError:
        return ""
    try:
        check(training, way, plain, monkeypatch)
    except (AssertionError, MemfitError, RuntimeError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(seeds: list[str]) -> int:
    """Run the trainings of these seeds, and show those that differ, made small; return how many there are."""
    os.environ["MEMFIT_PLAN_CACHE"] = "off"
    torch.set_num_threads(1)
    found = 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        plan_soon(monkeypatch)
        for seed in map(int, seeds):
            for way in ways(seed):
                if differs(drawn(seed), way, monkeypatch):
                    small = reduced(drawn(seed), lambda training, way=way: bool(differs(training, way, monkeypatch)))
                    print(f"seed {seed}, {way}: {differs(small, way, monkeypatch)}\n{small}")
                    found += 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

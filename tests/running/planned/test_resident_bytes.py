"""The arena holds at every op of a planned iteration, those that run again too, exactly what the plan says.

The timeline notes the bytes of a program's op before the plan's actions of that op, and those of an op that runs again
after them. A copy out frees its bytes at `free_by`, never earlier, as the simulator has it where nothing uses them.
"""

from __future__ import annotations

from typing import Any

import pytest

from memfit.ir import Swap, Trace, align_up
from memfit.planning.lifetimes import live_bytes
from memfit.running.planned import engine_plan
from memfit.running.planned.carried_out import CarriedOut
from memfit.running.planned.engine_plan import EnginePlan
from memfit.simulate import load_bytes
from running.planned.networks import WORKS
from running.planned.training import inside, train

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("steady", "on_its_own"),
    pytest.mark.unstressed("where bytes are"),
]


def away_when_noted(iteration: CarriedOut, swaps: tuple[Swap, ...]) -> list[int]:
    """Return, by op, the bytes that swaps have away when the timeline notes the op's beginning."""
    trace = iteration.recorded.trace
    ops, repeats = len(trace.ops), iteration.repeats or (-1,) * len(trace.ops)
    away = [0] * ops
    for swap in swaps:
        storage = trace.storages[swap.storage]
        freed = swap.in_start if trace.outlives(storage) else storage.free  # what does not return is away until then
        for at in range(swap.free_by, swap.in_start + 1 if swap.returns else freed):
            op = at % ops
            acts_first = repeats[op] >= 0
            if at != (swap.in_start if acts_first else swap.free_by):
                away[op] += align_up(swap.size_bytes, trace.alignment)
    return away


def live_at_the_beginning(trace: Trace) -> list[int]:
    live = live_bytes(trace, aligned=True)
    return [int(live[op.first_tick]) + trace.pinned_bytes for op in trace.ops]


@pytest.fixture
def carried(monkeypatch) -> list[tuple[CarriedOut, EnginePlan]]:
    """The iterations that plans were made for, with these."""
    made: list[tuple[CarriedOut, EnginePlan]] = []

    def note(one: CarriedOut, *about: Any) -> EnginePlan:
        made.append((one, swapping(one, *about)))
        return made[-1][1]

    swapping = engine_plan.swapping_by
    monkeypatch.setattr(engine_plan, "swapping_by", note)
    return made


@pytest.mark.long
@pytest.mark.parametrize("budget", [pytest.param("70%", marks=pytest.mark.slow), "60%"])
@pytest.mark.parametrize("moves", ["swap", "recompute", "joint"])
@pytest.mark.parametrize("name", ["convolutional", "residual in place"])
def test_the_arena_holds_what_the_plan_says_at_every_op(carried, name, moves, budget):
    with inside(moves, budget, measures=True) as session:
        train(WORKS[name], 12)
        plan, measured = session.planned, session.measured
    iteration = next(one for one, made in reversed(carried) if made.plan == plan.plan)
    trace = iteration.recorded.trace
    assert bool(plan.dropped) == (moves != "swap") and bool(plan.plan.swaps) >= (moves == "swap")
    live, away = live_at_the_beginning(trace), away_when_noted(iteration, plan.plan.swaps)
    assert list(measured.resident_bytes) == [held - gone for held, gone in zip(live, away, strict=True)]
    assert max(measured.resident_bytes) <= session.stats.budget_bytes
    if not plan.plan.swaps:
        assert list(plan.predicted.resident_bytes) == load_bytes(trace).tolist()
        assert all(seen <= most for seen, most in zip(live, plan.predicted.resident_bytes, strict=True))

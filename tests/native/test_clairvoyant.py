"""The native simulation against an independent one, and against every possible policy on small cases."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit._native import clairvoyant_bytes
from memfit.baselines.clairvoyant import Traffic, clairvoyant
from memfit.ir import Trace, align_up
from memfit.planning.lifetimes import minimum_budget, peak_live
from trace_builder import TraceBuilder, traces

REPETITIONS = 3


@dataclass
class Life:
    """One storage from birth to death, over as many iterations as it lives."""

    moved_bytes: int
    held_bytes: int
    uses: list[int] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)  # by iteration
    resident: bool = False
    clean: bool = True

    def next_use(self, now: int) -> float:
        return min((use for use in self.uses if use > now), default=float("inf"))


def operands_of(trace: Trace, index: int) -> set[int]:
    """What has to be resident in op `index`: what it accesses, and what is pinned in it."""
    return {*trace.ops[index].reads, *trace.ops[index].writes} | {
        i
        for i, s in enumerate(trace.storages)
        if s.pinned_from is not None and s.alloc <= index < s.free and (trace.recurs(s) or s.pinned_from <= index)
    }


def unroll(trace: Trace, iterations: int) -> list[dict[int, Life]]:
    """For each iteration, which life each storage id is part of."""
    unrolled: list[dict[int, Life]] = []
    for iteration in range(iterations):
        lives = {}
        left = (
            []
            if iteration == 0
            else [(i, s) for i, s in enumerate(trace.storages) if s.alloc_tick >= 0 and s.free_tick == trace.ticks]
        )
        for i, s in enumerate(trace.storages):
            life = Life(s.size_bytes, align_up(s.size_bytes, trace.alignment))
            if iteration and trace.recurs(s):
                life = unrolled[-1][i]
            elif s.alloc_tick < 0 and s.free_tick < trace.ticks:
                match = next((pair for pair in left if pair[1].size_bytes == s.size_bytes), None)
                if match:
                    left.remove(match)
                    life = unrolled[-1][match[0]]
            life.ids[iteration] = i
            lives[i] = life
        for index in range(len(trace.ops)):
            for i in operands_of(trace, index):
                lives[i].uses.append(iteration * len(trace.ops) + index)
        unrolled.append(lives)
    return unrolled


def simulate(trace: Trace, budget_bytes: int) -> Traffic:
    """Oracle: the policy in the plainest way, scanning everything at every step."""
    # One iteration more than is played, so that the last one has a future too.
    unrolled = unroll(trace, REPETITIONS + 1)
    budget = budget_bytes - trace.pinned_bytes
    everything = {id(life): life for lives in unrolled for life in lives.values()}.values()
    moved = {"out": 0, "in": 0}

    def make_room(wanted: int, iteration: int, now: int, busy: list[Life]) -> None:
        while sum(x.held_bytes for x in everything if x.resident) + wanted > budget:
            idle = [x for x in everything if x.resident and not any(x is b for b in busy)]
            victim = max(idle, key=lambda x: (x.next_use(now), x.clean, x.ids[iteration]))
            moved["out"] += 0 if victim.clean else victim.moved_bytes
            victim.clean, victim.resident = True, False

    for iteration, lives in enumerate(unrolled[:REPETITIONS]):
        moved["out"] = moved["in"] = 0
        edges = [op.first_tick for op in trace.ops] + [trace.ticks]
        for index in range(-1, len(trace.ops)):
            now = iteration * len(trace.ops) + index
            begin, end = (0, edges[0]) if index < 0 else (edges[index], edges[index + 1])
            if index >= 0:
                op = trace.ops[index]
                busy = [lives[i] for i in operands_of(trace, index) if trace.storages[i].alloc_tick < begin]
                wanted = op.workspace_bytes + sum(x.held_bytes for x in busy if not x.resident)
                make_room(wanted, iteration, now, busy)
                for life in busy:
                    moved["in"] += 0 if life.resident else life.moved_bytes
                    life.resident = True
                for i in op.writes:
                    lives[i].clean = False
            for i, s in enumerate(trace.storages):
                if begin <= s.free_tick < end:
                    lives[i].resident = False
                elif begin <= s.alloc_tick < end:
                    lives[i].resident, lives[i].clean = True, False
            make_room(0, iteration, now, [])
        heirs = {id(life) for life in unrolled[iteration + 1].values()}
        for life in lives.values():
            life.resident = life.resident and id(life) in heirs
    return Traffic(moved["out"], moved["in"])


@pytest.mark.long
@given(trace=traces(), share=st.floats(0, 1.1))
def test_same_as_the_plain_simulation(trace, share):
    low, high = minimum_budget(trace)[0], peak_live(trace, aligned=True)[0] + trace.pinned_bytes
    budget = int(low + share * max(high - low, 0))
    assert clairvoyant(trace, budget) == simulate(trace, budget)


def fewest_in(trace: Trace, budget: int) -> int:
    """Oracle: the fewest units brought in by any choice of what to keep, over every choice."""
    frontier = {frozenset(): 0}
    for index, op in enumerate(trace.ops):
        ahead: dict[frozenset[int], int] = {}
        operands = {s for s in op.reads if trace.storages[s].alloc < index}
        born = {i for i, s in enumerate(trace.storages) if s.alloc == index and s.free > index + 1}
        room = budget - len(operands) - op.workspace_bytes
        for resident, cost in frontier.items():
            idle = resident - operands
            for kept in combinations(sorted(idle), min(room, len(idle))):
                state = {s for s in {*kept, *operands, *born} if trace.storages[s].free > index + 1}
                total = cost + len(operands - resident)
                key = frozenset(state)
                ahead[key] = min(total, ahead.get(key, total))
        frontier = ahead
    return min(frontier.values())


def unit_trace(seed: int) -> Trace:
    """Storages of one byte, written once and read at random: evicting any of them costs the same."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    for _ in range(11):
        alive = builder.alive()
        builder.op(reads=rng.sample(alive, min(len(alive), 2)), outputs=[1], scratch=[1] * rng.randrange(2))
        builder.free(*(storage for storage in builder.alive() if rng.random() < 0.1))
    builder.free(*builder.alive())
    return builder.build()


def test_no_policy_brings_in_less_when_all_storages_are_equal():
    moved = 0
    for seed in range(300):
        trace = unit_trace(seed)
        budget = minimum_budget(trace)[0] + seed % 3
        bytes_in = clairvoyant(trace, budget).bytes_in
        assert bytes_in == fewest_in(trace, budget), seed
        moved += bytes_in
    assert moved > 300  # the budgets bind


def test_columns_that_would_index_out_of_bounds_are_refused():
    def column(*values):
        return np.array(values, dtype=np.int64)

    good = {
        "size_bytes": column(8),
        "alloc_tick": column(-1),
        "free_tick": column(0),
        "first_tick": column(0),
        "workspace_bytes": column(0),
        "access_begin": column(0, 1),
        "access_storage": column(0),
        "access_is_write": np.zeros(1, dtype=np.uint8),
        "ticks": 0,
        "alignment": 1,
        "budget_bytes": 8,
    }
    assert clairvoyant_bytes(**good).required_bytes == 8
    bad = {
        "access_storage": column(1),
        "access_begin": column(0, 2),
        "free_tick": column(),
        "workspace_bytes": column(),
        "access_is_write": np.zeros(0, dtype=np.uint8),
        "alignment": 0,
    }
    for name, value in bad.items():
        with pytest.raises(ValueError, match="do not describe a trace"):
            clairvoyant_bytes(**(good | {name: value}))
    with pytest.raises(ValueError):
        clairvoyant_bytes(**(good | {"access_storage": column(-1)}))

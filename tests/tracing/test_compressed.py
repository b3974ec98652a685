"""Recordings and plans as they are kept: compressed, and equal when they are restored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import memfit
from memfit.ir import Trace
from memfit.running.planned import recorded_kinds as planned
from memfit.running.planned.recorded import CompressedIterations, Recorded
from memfit.running.session import active
from memfit.tracing.build import RawRecording, Roles, build_trace
from memfit.tracing.compressed import Compressed, CompressedIteration, CompressedRecording
from running.plainly import descend
from tracing.recordings import recording

NAMES, SOURCES = ("aten::mm", "aten::add_"), ("/elsewhere/train.py:3", "/elsewhere/train.py:4")
ABOUT = {"signature": "s", "torch_version": "2", "device": "cpu", "script": "", "iteration": 1, "alignment": 64}


def random_recording(seed: int, ops: int) -> RawRecording:
    """Return ops that allocate, use and free at random, between ops too; some of it was there before."""
    random = np.random.default_rng(seed)
    alive, next_block = list(range(1, 6)), 6
    before = [(block, 64 * block, block == 3) for block in alive]
    rows, accesses, ticks = [], [], []
    for op in range(ops):
        rows.append([op % 2, op % 3, op % 2, 7_000 * op, 7_000 * op + 2_500, len(ticks), 64 * op, -1, 11])
        for _ in range(int(random.integers(4))):
            inside, source = int(random.integers(2)), int(random.integers(-1, 2))
            if random.integers(2) and len(alive) > 1:
                ticks.append((alive.pop(int(random.integers(len(alive)))), -64, op + 1, inside, -1))
            else:
                ticks.append((next_block, int(random.integers(1 << 40)), op + 1, inside, source))
                alive.append(next_block)
                next_block += 1
        accesses += [(op, int(block), int(random.integers(2))) for block in random.choice(alive, 2)]
    handovers = [(op, accesses[2 * op][1], accesses[2 * op + 1][1]) for op in range(ops)]
    stored = [(tick[0], int(random.integers(1, 50))) for tick in ticks[::2]]
    tables = {"ops": rows, "accesses": accesses, "ticks": ticks, "before": before, "handovers": handovers,
              "stored": stored}  # fmt: skip
    return recording(tables, NAMES, SOURCES)


@pytest.mark.parametrize("seed", range(20))
def test_an_iteration_cut_out_and_compressed_gives_the_trace_that_the_whole_recording_gives(seed):
    raw = random_recording(seed, 40)
    for first, last in ((0, 40), (0, 10), (13, 29), (30, 40), (39, 40)):
        roles = Roles(parameters={1, 4}, gradients={9})
        compressed = CompressedIteration.of(raw, first, last, roles, None, **ABOUT)
        assert compressed.trace() == build_trace(raw, first, last, roles, **ABOUT)
    assert build_trace(raw, 0, 40, Roles(), **ABOUT).handovers


@pytest.mark.parametrize("most", [0, 1, 127, 128, 1 << 15, 1 << 31, (1 << 62) - 1])
def test_integers_of_every_width_come_back_from_a_compressed_recording(most):
    raw = random_recording(0, 5)
    wide = np.array([(most, -most, 0), (-most, most, 1), (0, 0, most)], raw.accesses.dtype)
    found = CompressedRecording.of(RawRecording(raw.ops, wide, raw.ticks[:0], raw.before, NAMES, SOURCES)).recording()
    assert np.array_equal(found.accesses, wide) and found.ticks.dtype == raw.ticks.dtype and not len(found.ticks)
    assert np.array_equal(found.ops, raw.ops) and tuple(found.sources) == SOURCES


def test_what_is_compressed_is_equal_and_says_what_it_takes():
    compressed = Compressed(list(range(1000)))
    assert compressed.value() == list(range(1000)) and 0 < compressed.size_bytes < 8000


def test_a_sessions_trace_and_planned_iteration_are_those_that_were_recorded(monkeypatch):
    eager: list[Trace] = []
    recorded: list[tuple[Recorded | None, Recorded | None]] = []

    class Iteration(CompressedIteration):
        @classmethod
        def of(cls, raw, first, last, roles, accelerator, **about):
            eager.append(build_trace(raw, first, last, roles, **about))
            return super().of(raw, first, last, roles, accelerator, **about)

    class Iterations(CompressedIterations):
        @classmethod
        def of(cls, raw, *about):
            compressed = super().of(raw, *about)
            recorded.append((Recorded.of(raw, *about), compressed.recorded()))
            return compressed

    monkeypatch.setattr(active, "CompressedIteration", Iteration)
    monkeypatch.setattr(planned, "CompressedIterations", Iterations)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with memfit.session(None) as session:
        for _ in descend(optimizer, lambda: model(torch.ones(32, 64)).square().mean(), 9):
            pass
    assert eager == [session.trace] and session.trace.ops
    [(whole, restored)] = recorded
    assert whole is not None and restored is not None
    assert (whole.trace, whole.blocks) == (restored.trace, restored.blocks)
    for name in ("block", "size", "begun"):
        assert np.array_equal(getattr(whole.iterations, name), getattr(restored.iterations, name))
    assert whole.iterations.first_count == restored.iterations.first_count
    compressed = session.compressed_plan
    assert compressed is not None and compressed.trace() == whole.trace

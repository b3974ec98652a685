"""What memfit's own records of iterations take: a few hundred bytes an op, and the statistics say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit
from memfit.running.session import Session

MOST_PER_OP = 300
LAYERS = 200  # of thirteen ops each


def train(session: Session, layers: int, steps: int, width: int = 8) -> int:
    """Train a chain of small layers; return the ops of an iteration."""
    layer = nn.Linear(width, width)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    before = 0
    for _ in range(steps):
        before = session.stats.ops
        h = torch.ones(width, width)
        for _ in range(layers):
            h = torch.tanh(layer(h))
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return session.stats.ops - before


@pytest.mark.parametrize("plan", [False, True])
def test_records_take_at_most_300_bytes_an_op(plan):
    with memfit.session(None, plan=plan) as session:
        ops = train(session, LAYERS, 12)
        stats = session.stats
    assert ops > 2000 and (stats.plans > 0) == plan
    assert 0 < stats.record_bytes <= MOST_PER_OP * ops


@pytest.mark.long
@pytest.mark.unstressed("what there is left for a plan to swap")
def test_records_take_at_most_300_bytes_an_op_where_a_plan_swaps():
    with memfit.session("60%", "ram") as session:
        ops = train(session, LAYERS, 16, width=64)
        stats = session.stats
    assert ops > 2000 and stats.swaps > 0
    assert 0 < stats.record_bytes <= MOST_PER_OP * ops


def test_the_records_of_a_session_that_has_ended_are_still_counted():
    with memfit.session(None) as session:
        train(session, 20, 9)
        running = session.stats.record_bytes
    assert session.stats.record_bytes == running > 0


def test_a_trace_that_was_asked_for_is_let_go_when_the_next_iteration_ends():
    with memfit.session(None) as session:
        train(session, 5, 3)
        first = session.trace
        assert session.trace is first
        train(session, 5, 3)
        assert session.trace is not first and session.trace == first

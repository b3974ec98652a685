"""What plans keep of ops that run again: it goes with the iteration, whatever of it lives on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit
from memfit.running.planned import op_times, planner

pytestmark = [pytest.mark.timeout(120), pytest.mark.unstressed("what plans keep is counted")]

A_RECIPE = 64  # bytes: less than any takes


def test_activations_that_are_kept_keep_no_recipes(monkeypatch):
    monkeypatch.setattr(planner, "_PATIENCE", 60.0)
    monkeypatch.setattr(op_times, "_IN_A_ROW", 1 << 20)
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    kept, recorded = [], []
    with memfit.session(1500 << 10, "ram", device="cpu", moves="recompute") as session:
        for _ in range(40):
            optimizer.zero_grad()
            hidden = torch.randn(2048, 16)
            for number, layer in enumerate(layers):
                hidden = nn.functional.gelu(layer(hidden))
                if number == 5:
                    kept.append(hidden.detach())
            hidden.square().mean().backward()
            del hidden
            optimizer.step()
            recorded.append(session.stats.record_bytes)
        remade = session.stats.recomputations
    assert remade > 40
    # The records of an iteration and its plan, in which a number may take a digit more, and no recipe.
    assert max(recorded[30:]) < recorded[20] + A_RECIPE

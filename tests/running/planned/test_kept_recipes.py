"""What plans keep of ops that run again: it goes with the iteration, whatever of it lives on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("steady"),
    pytest.mark.unstressed("what plans keep is counted"),
]


@pytest.mark.long
def test_activations_that_are_kept_keep_no_recipes():
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
    assert max(recorded[30:]) <= recorded[20]  # the records of an iteration and its plan, and nothing of it

"""What plans keep of ops that run again: it goes with the iteration, whatever of it lives on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import memfit
from memfit.running.planned import planner

pytestmark = [pytest.mark.timeout(120), pytest.mark.unstressed("what plans keep is counted")]
ITERATIONS = 300  # an iteration's recipes take some 30 KB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_losses_that_are_kept_keep_no_recipes(monkeypatch):
    monkeypatch.setattr(planner, "_PATIENCE", 60.0)
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(16, 16), nn.Dropout(0.1), nn.GELU())))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept, resident = [], []
    with memfit.session(1200 << 10, "ram", device="cpu", moves="recompute") as session:
        for _ in range(30 + ITERATIONS):
            optimizer.zero_grad()
            loss = net(torch.randn(2048, 16)).square().mean()
            loss.backward()
            optimizer.step()
            kept.append(loss.detach())
            resident.append(resident_bytes())
        assert session.stats.recomputations > ITERATIONS * 10
    assert resident[-1] - resident[30] < 5 << 20

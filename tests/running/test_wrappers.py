"""Tensors for whose layout Python answers, beside a thread that frees storages: neither waits for ever."""

from __future__ import annotations

import pytest
import torch

import memfit
from running.side_by_side import hurried, repeated

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


def test_nested_tensors_are_padded_while_another_thread_frees():
    parts = [torch.ones(3, 4), torch.ones(2, 4)]
    frees = repeated(lambda: torch.ones(8) * 2)
    with hurried(1e-6), memfit.session(None, "ram", plan=False) as session, frees:
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        for _ in range(300):
            assert torch.nested.to_padded_tensor(nested, 0.0).sum().item() == 20
        assert session.stats.ops > 300

"""Ops that use no storage of the session and make none are no ops of an iteration's: nothing counts or records them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import memfit

OUTSIDE = [
    pytest.param(lambda outside: outside.neg_(), id="in place"),
    pytest.param(lambda outside: outside[:2].abs_(), id="in place, of a view"),
    pytest.param(lambda outside: torch.mul(outside, outside, out=outside_memory()), id="out"),
    pytest.param(lambda outside: outside[0].item(), id="item"),
    pytest.param(lambda outside: outside.view(2, 2).t(), id="views"),
    pytest.param(lambda _: torch.empty(4, device="meta").neg(), id="another device"),
]
INSIDE = [
    pytest.param(lambda outside: outside + 1, id="makes a storage"),
    pytest.param(lambda outside: torch.zeros_like(outside), id="makes one of its shape"),
    pytest.param(lambda _: torch.zeros(4), id="factory"),
    pytest.param(lambda _: torch.empty(4), id="factory that fills nothing"),
    pytest.param(lambda _: torch.zeros(4, device="cpu"), id="factory here"),
    pytest.param(lambda outside: outside.to(torch.float64), id="composite that makes a storage"),
    pytest.param(lambda outside: torch.ones(4).add_(outside), id="uses a storage"),
    pytest.param(lambda outside: outside.add_(1), id="makes a storage on its way"),  # of the number, as elements are
]


def outside_memory() -> torch.Tensor:
    """Return a tensor of memory that no session governs."""
    return torch.from_numpy(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("act", OUTSIDE)
def test_an_op_without_a_storage_of_the_session_is_not_counted(act):
    outside = outside_memory()
    with memfit.session("1MiB") as session:
        act(outside)
        assert session.stats.ops == 0


@pytest.mark.parametrize("act", INSIDE)
def test_an_op_that_uses_or_makes_one_is(act):
    outside = outside_memory()
    with memfit.session("1MiB") as session:
        act(outside)
        assert session.stats.ops > 0


def test_a_number_comes_out_right_and_a_storage_stays_writable_outside():
    outside = outside_memory()
    with memfit.session("1MiB"):
        outside.add_(1)
        inside = outside * 2
        assert outside.tolist() == [1, 2, 3, 4] and inside.tolist() == [2, 4, 6, 8]

"""Compiled models train in a budget to the same bits as plainly, by plans."""

from __future__ import annotations

import pytest

import memfit
from benchmarks.common.compiled_programs import PROGRAMS, train
from running.plainly import same_bits
from running.planned.training import plan_at_fixed_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_at_shares_of_its_peak(name, monkeypatch):
    plan_at_fixed_steps(monkeypatch)
    plain = [tensor.clone() for tensor in train(name)]
    for share in ("60%", "40%", "25%"):
        with memfit.session(share, "ram") as session:
            assert same_bits(train(name), plain), share
        assert session.planned_iterations > 0 and session.stats.bytes_out > 0, share
        assert session.stats.unseen_writes == 0, share

"""One session at a time, many after each other: each is refused or begins, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

import memfit
from memfit.errors import InputError, UsageError
from memfit.running import engine
from running.helpers_training import accumulation, known, run_in_session, run_inside, transformer

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]

TIERS = ("ram", "disk")


def test_a_session_inside_a_session_is_refused_and_the_outer_one_goes_on():
    with memfit.session(known(accumulation).tight_bytes, "ram") as outer:
        with pytest.raises(UsageError, match="active already"), memfit.session(None):
            pytest.fail("entered")
        log = run_inside(outer, accumulation)
        assert outer.stats.budget_bytes == known(accumulation).tight_bytes
    assert log.rows == known(accumulation).rows
    assert not engine.load().active()


def test_a_session_that_has_ended_cannot_begin_again_and_keeps_its_figures():
    session = memfit.session(known(transformer).budget("percent"), "ram")
    with session:
        run_inside(session, transformer)
    first, signatures = session.stats, session.signatures
    with pytest.raises(UsageError, match="has ended"), session:
        pytest.fail("entered")
    assert not engine.load().active()
    assert (session.stats, session.signatures) == (first, signatures)


@pytest.mark.parametrize("budget", ["100TiB", 2**63 - 1])
def test_a_budget_far_beyond_the_machine_is_no_limit(budget):
    with memfit.session(budget, "ram"):
        assert torch.ones(10).sum().item() == 10


def test_a_malformed_budget_or_tier_is_refused_before_anything_starts():
    for budget, tier in (("60", "nonsense"), ("abc", "ram"), ("0%", "ram"), (-5, "ram"), ("1GiB", "disk:/nowhere")):
        with pytest.raises(InputError):
            memfit.session(budget, tier)
    assert not engine.load().active()


def optimizer_hooks() -> int:
    module = sys.modules[torch.optim.Optimizer.__module__]
    return len(module._global_optimizer_pre_hooks) + len(module._global_optimizer_post_hooks)


def test_outside_of_a_session_torch_is_as_it_was():
    patched = (torch.Tensor.numpy, torch.Tensor.data_ptr, torch._foreach_add_, torch.UntypedStorage.tolist)
    own = ["numpy" in vars(torch.Tensor), "tolist" in vars(torch.Tensor)]
    hooks = optimizer_hooks()
    run_in_session(accumulation, None, "ram")
    assert patched == (torch.Tensor.numpy, torch.Tensor.data_ptr, torch._foreach_add_, torch.UntypedStorage.tolist)
    assert own == ["numpy" in vars(torch.Tensor), "tolist" in vars(torch.Tensor)]
    assert hooks == optimizer_hooks()


def memory_bytes() -> tuple[int, int]:
    """(virtual, resident) size of this process."""
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[0]) * 4096, int(pages[1]) * 4096


@pytest.mark.long
@pytest.mark.parametrize("tier", [pytest.param(t, marks=[pytest.mark.slow] if t == "ram" else []) for t in TIERS])
def test_fifty_sessions_in_a_row_leave_nothing_behind(tier):
    def one() -> None:
        with memfit.session(2_000_000, tier):
            kept = [torch.ones(100_000) for _ in range(8)]
            for tensor in kept:
                tensor.mul_(2)

    def grown_by_ten() -> tuple[int, int]:
        virtual, resident = memory_bytes()
        for _ in range(10):
            one()
        return tuple(now - then for now, then in zip(memory_bytes(), (virtual, resident), strict=True))

    grown_by_ten()
    files = len(os.listdir("/proc/self/fd"))
    grown = [grown_by_ten() for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == files
    # What each session leaves is there every time, and the C library's heap grows now and then.
    virtual, resident = (min(each) for each in zip(*grown, strict=True))
    assert resident < 1_000_000  # one session's arena and tier are 3.6 MB
    assert virtual < 10_000_000

"""What an op allocates and gives back fits, again and again, into what its recording says it needs."""

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from memfit import BudgetError, record, session
from memfit.planning.lifetimes import minimum_budget
from memfit.running import engine
from running.helpers_training import others_hidden

UNIT = 64 << 10  # bytes: no size is small in the budgets below
PLENTY = 256 << 20
Steps = list[tuple[bool, int]]
steps: Steps = []
"""What the op does: it takes so many units, or gives back one of those it has."""


@torch.library.custom_op("memfit_windows::work", mutates_args=())
def _work(x: torch.Tensor) -> torch.Tensor:
    live: list[torch.Tensor] = []
    for takes, number in steps:
        if takes:
            live.append(torch.full((number * UNIT // 4,), float(number)))
        elif live:
            scratch = live.pop(number % len(live))
            assert scratch.min() == scratch.max() == scratch.numel() * 4 // UNIT
            del scratch
    return x.sum().reshape(1)


work = torch.ops.memfit_windows.work
"""The overload packet: from torch 2.14 on, the overload of an op in Python is dispatched another way, as no op."""


@pytest.fixture(autouse=True, scope="module")
def on_its_own() -> Iterator[None]:
    with others_hidden():
        yield


@pytest.mark.long
@pytest.mark.copied("what is kept for re-runs, beside what the op needs")
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=16), st.integers(1, 30))
@example([(True, 8), (True, 1), (True, 16), (False, 1), (False, 0), (True, 16), (True, 16)], 24)
@example([], 1)
@example([(True, 25), (True, 30), (False, 24), (False, 11), (True, 8), (True, 23)], 4)
def test_an_op_runs_within_the_budget_its_recording_asks_for(pattern: Steps, units: int) -> None:
    steps[:] = pattern
    x = torch.arange(units * UNIT // 4, dtype=torch.float32) % 5
    said = work(x)
    least = minimum_budget(record(lambda: work(x)))[0]
    gc.collect()
    with session(PLENTY, "ram", device="cpu") as s:
        assert work(x).equal(said)  # (from then on it is known)
        budget = -(-least // 64) * 64
        engine.load().set_budget(budget)
        for _ in range(4):
            left = torch.ones(UNIT // 4)
            torch.ones((budget - UNIT) // 4)  # all else leaves
            right = torch.ones(UNIT // 4)
            assert work(x).equal(said)
            assert left.sum() == right.sum() == UNIT // 4
        assert s.stats.peak_footprint_bytes <= budget and s.stats.growths == s.stats.mapped_ops == 0


@pytest.mark.parametrize(("idle", "units", "leave"), [(0, 80, 0), (32, 80, 2), (32, 96, 4)])
@pytest.mark.copied("what is kept for re-runs, beside what the op needs")
def test_an_op_takes_pages_where_its_own_storages_leave_no_long_stretch(idle: int, units: int, leave: int) -> None:
    """An eighth of the room is a hole between what is used, and what may leave does not lie beside the free rest."""
    steps[:] = [(True, 32), (True, 32), (False, 0), (True, units)]
    budget = 132 * UNIT
    with session(budget, "ram", device="cpu", plan=False, map="never", split="never", grow=False) as s:
        others = [torch.full((UNIT * 2,), float(i)) for i in range(idle // 8)]
        assert work(torch.ones(1)).item() == 1
        assert s.stats.punches == 1 and s.stats.evictions == leave and s.stats.peak_footprint_bytes <= budget
        assert [other.sum().item() for other in others] == [UNIT * 2 * i for i in range(idle // 8)]
        torch.ones(UNIT) + 1
        assert s.stats.footprint_bytes < budget and s.stats.growths == 0


@pytest.mark.copied("what is kept for re-runs, beside what the op needs")
def test_nothing_leaves_for_what_finds_no_room_by_that() -> None:
    """What is free and what may leave have the bytes that are asked for, give or take a page, and fewer whole pages."""
    steps[:] = [(True, 32), (True, 32), (False, 0), (True, 100)]
    ran = set()
    for more in range(0, 24 << 10, 1 << 10):
        with session(132 * UNIT + more, "ram", device="cpu", plan=False, map="never", split="never", grow=False) as s:
            other = torch.ones(UNIT * 2)
            try:
                work(torch.ones(1))
            except BudgetError:
                assert s.stats.evictions == 0
                ran.add(False)
            else:
                assert s.stats.evictions == 1
                ran.add(True)
            assert other.sum().item() == UNIT * 2
    assert ran == {True, False}


@pytest.mark.copied("what is kept for re-runs, beside what the op needs")
def test_an_input_comes_back_to_pages_that_an_op_not_known_might_want() -> None:
    """Nobody has written to what cuts up the room: it stays."""
    page, punches = 4096, []
    for pages in range(270, 330, 10):
        with session(pages * page, "ram", device="cpu", plan=False, map="never", split="never", grow=False) as s:
            x = torch.ones(120 * page // 4)
            sizes = ((pages - 15) // 3 * page // 4, 5 * page // 4)
            between, fixed = zip(*[(torch.ones(sizes[0]), torch.empty(sizes[1])) for _ in range(3)], strict=True)
            del between
            assert x.sum().item() == 120 * page // 4
            assert len(engine.load().immovable()) == len(fixed)
            punches.append(s.stats.punches)
    assert any(punches)

"""Each kind of distributed training: every rank sees the bits that it sees without memfit, and nothing is pinned."""

from __future__ import annotations

import os

import pytest

from benchmarks.common import distributed as kinds
from memfit.running import engine
from running.distributed.ranks import Run, plainly_and_within
from running.planned.training import wait_for_plans

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.unstressed("when things leave"),
]
KINDS = [
    "ddp", "ddp_views", "ddp_no_sync", "ddp_static_graph", "ddp_hook", "ddp_join", "by_hand", "coalesced",
    "every_collective", "fsdp1", "fsdp2", "checkpointed", "zero", "zero_alone", "tensor_parallel", "pipeline",
]  # fmt: skip
BUDGETS = ["60%", "40%"]
SLACK = 16 << 10  # what is small


def check_pinned(runs: list[list[Run]], least: int = 0) -> None:
    for number, (_, *limited) in enumerate(runs):
        for each in limited:
            last = each.pinned_bytes[-3:]
            assert all(least <= pinned <= least + SLACK for pinned in last), f"rank {number}: {last}"


@pytest.mark.long
def test_two_ranks_of_ddp_within_a_budget_train_as_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "STEPS", 5)
    check_pinned(plainly_and_within(kinds.ddp, ["60%"], tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "ddp_views"])
def test_where_nobody_answers_for_aliases_buckets_are_pinned_and_nothing_else(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "STEPS", 5)
    monkeypatch.setattr(engine.load(), "answer_for_aliases", lambda: False)
    parameters = sum(p.nbytes for p in kinds.network().parameters())
    check_pinned(plainly_and_within(getattr(kinds, kind), ["60%"], tmp_path), parameters)


@pytest.mark.long
@pytest.mark.parametrize("stress", ["move", "evict"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp1"])
def test_what_a_rank_s_library_keeps_between_ops_stays_where_it_is(kind, stress, tmp_path, monkeypatch):
    """With all that may move in motion: DDP agrees on its buckets through raw pointers that outlive ops."""
    monkeypatch.setattr(kinds, "STEPS", 3)
    engine.load().set_stress(stress)
    try:
        plainly_and_within(getattr(kinds, kind), ["60%"], tmp_path)
    finally:
        engine.load().set_stress(os.environ.get("MEMFIT_STRESS", ""))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_plainly_with_nothing_pinned(kind, tmp_path):
    check_pinned(plainly_and_within(getattr(kinds, kind), BUDGETS, tmp_path))


@pytest.mark.long
def test_what_gloo_makes_of_sparse_gradients_is_pinned_until_it_dies(tmp_path):
    table_bytes = 4 * kinds.WIDTH * (4 * kinds.WIDTH + 8)
    for _, *limited in plainly_and_within(kinds.ddp_sparse, BUDGETS, tmp_path):
        assert all(0 < pinned < table_bytes for each in limited for pinned in each.pinned_bytes[-3:])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["by_hand", "ddp", "fsdp2", "zero_alone", "pipeline"])
def test_iterations_of_ranks_run_by_plan_to_the_same_bits(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "STEPS", 16)
    wait_for_plans(monkeypatch)
    runs = plainly_and_within(getattr(kinds, kind), ["50%"], tmp_path)
    assert min(limited.planned_iterations for _, limited in runs) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_four_ranks_train_as_plainly_with_nothing_pinned(kind, tmp_path):
    check_pinned(plainly_and_within(getattr(kinds, kind), BUDGETS, tmp_path, world=4))

"""Training on a disk that compresses: what it leaves of which storages is in the statistics, the trace and the plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit
from memfit.ir import Category
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.planned.recorded import with_foreseen_copies
from running.plainly import as_plainly

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.unstressed("what leaves"),
    pytest.mark.copied("what the tier has to write"),
]


def slow(folder: object, **more: object) -> DisturbedTier:
    """Return a disk so slow that every codec pays."""
    return DisturbedTier("disk", str(folder), compress=True, link_bytes_per_second=1e8, **more)


def train(steps: int = 6) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.2))))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(512, 128)).square().mean().backward()
        optimizer.step()
    return [tensor.detach() for p in net.parameters() for tensor in (p, optimizer.state[p]["exp_avg"])]


@pytest.mark.long
@pytest.mark.parametrize("budget", ["45%", 2_500_000])
def test_training_changes_no_bit_and_writes_less_than_leaves(budget, tmp_path):
    stats = as_plainly(lambda: train(30), budget, slow(tmp_path)).stats
    assert 0 < stats.bytes_stored < 0.8 * stats.bytes_out
    assert 0 < stats.bytes_loaded < 0.8 * stats.bytes_in


def test_what_is_written_equals_what_leaves_where_nothing_is_compressed():
    # Without a plan, so that no copy is under way at the end: that is no leaving yet.
    stats = as_plainly(train, 2_500_000, "disk", plan=False).stats
    assert stats.bytes_stored == stats.bytes_out > 0
    assert stats.bytes_loaded >= stats.bytes_in > 0


def test_a_trace_says_what_the_tier_left_of_each_storage(tmp_path):
    with memfit.session(2_500_000, slow(tmp_path)) as session:
        train()
        trace = session.trace
    left = [storage for storage in trace.storages if storage.stored_bytes]
    shares = {
        category: [s.stored_bytes / s.size_bytes for s in left if s.category is category] for category in Category
    }
    assert len(left) > 5 and all(0 < storage.stored_bytes <= storage.size_bytes for storage in left)
    assert (
        min(shares[Category.ACTIVATION]) < 0.7
    )  # half of what a ReLU leaves is zeros, and a mask takes a bit of eight
    assert all(share > 0.7 for share in shares[Category.PARAMETER])
    assert all(storage.copied_bytes == storage.size_bytes for storage in trace.storages if not storage.stored_bytes)


def test_what_has_not_left_is_foreseen_to_be_as_small_as_what_has(tmp_path):
    with memfit.session(2_500_000, slow(tmp_path)) as session:
        train()
        trace = session.trace
    left = [storage for storage in trace.storages if storage.stored_bytes]
    share = sum(storage.stored_bytes for storage in left) / sum(storage.size_bytes for storage in left)
    for before, after in zip(trace.storages, with_foreseen_copies(trace).storages, strict=True):
        assert after.stored_bytes == (before.stored_bytes or int(share * before.size_bytes))


def test_only_the_disk_behind_memory_compresses(tmp_path):
    tier = DisturbedTier("ram", str(tmp_path), 1 << 20, compress=True, link_bytes_per_second=1e8)
    with memfit.session(1 << 20, tier) as session:
        kept = [torch.zeros(64 << 10) for _ in range(16)]  # 256 KiB each
        assert all(tensor.sum() == 0 for tensor in kept)
        stats = session.stats
    assert 1 << 19 < stats.bytes_stored < stats.bytes_out - (1 << 20)


def test_a_session_goes_on_after_a_corrupted_read(tmp_path):
    with memfit.session(1 << 20, slow(tmp_path, corrupt_read=1)):
        kept = [torch.full((64 << 10,), float(i)) for i in range(8)]
        with pytest.raises(RuntimeError, match=r"differ from those written \(checksum\).*--tier disk:PATH"):
            kept[0].sum()
        assert [tensor.sum().item() for tensor in kept] == [float(i) * (64 << 10) for i in range(8)]

"""Processes: the workers of loaders, forked children and others; what one does never harms another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import memfit
from running.children import child_says, script_prints
from running.plainly import as_plainly
from running.pressure import BUDGET, COUNT, evicted, is_full_of, is_resident, press, ramp

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.copied("what children find in the tier"),
]
TIERS = ["ram", "disk"]


class Ramps(Dataset):
    """Eight tensors of which the arena holds four."""

    def __init__(self) -> None:
        self.rows = [torch.full((COUNT // 2,), float(i)) for i in range(24)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index][:100] + self.rows[(index + 1) % 24][-100:]


def batches(loader: DataLoader, between: Callable[[], object]) -> list[list[float]]:
    seen = []
    for batch in loader:
        between()
        seen.append(batch.flatten(1).double().sum(1).tolist())
    return seen


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_s_workers_read_evicted_rows_while_the_parent_swaps(workers, tier):
    expected = batches(DataLoader(Ramps(), batch_size=5), lambda: None)
    with memfit.session(BUDGET, tier) as session:
        data = Ramps()
        loader = DataLoader(data, batch_size=5, num_workers=workers)
        for _ in range(3):
            assert batches(loader, press) == expected
        assert session.stats.evictions > 20
        assert [row[3].item() for row in data.rows] == list(range(24))


def test_persistent_workers_keep_the_rows_they_were_born_with():
    """The parent overwrites, frees and makes rows all the time: no slot of a living child may be used again."""
    with memfit.session(BUDGET, "ram") as session:
        others = session.stats.live_bytes
        data = Ramps()
        loader = DataLoader(data, batch_size=5, num_workers=2, persistent_workers=True)
        expected = batches(loader, lambda: None)
        for row in data.rows:
            row.fill_(-1)
        for _ in range(2):
            assert batches(loader, press) == expected
        del loader
        press()
        assert is_full_of(data.rows[3], -1)
        del data
        press()
        assert session.stats.tier_used_bytes <= others + 16 * COUNT * 4


def test_training_from_a_loader_with_workers_gives_the_plain_weights():
    def train() -> list[torch.Tensor]:
        torch.manual_seed(5)
        data = TensorDataset(torch.randn(64, 1024), torch.randn(64, 1))
        net = torch.nn.Sequential(torch.nn.Linear(1024, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
                optimizer.zero_grad()
                (net(x) - y).pow(2).mean().backward()
                optimizer.step()
        return list(net.parameters())

    assert as_plainly(train, 2 * BUDGET, "disk").stats.evictions > 0


@pytest.mark.parametrize("tier", TIERS)
def test_a_forked_child_reads_what_the_parent_overwrites_and_frees(tier):
    with memfit.session(BUDGET, tier):
        tensors = [evicted(torch.full((COUNT,), float(i))) for i in range(8)]

        def overwrite() -> None:
            for tensor in tensors[:4]:
                tensor.fill_(-1)
            del tensors[4:]
            for _ in range(3):
                press()

        kept = list(tensors)
        assert child_says(lambda: all(map(is_full_of, kept, range(8))), overwrite)
        kept.clear()
        press()
        assert all(is_full_of(t, -1) for t in tensors)


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_child_does_is_not_seen_by_the_parent(tier):
    with memfit.session(BUDGET, tier) as session:
        tensors = [torch.full((COUNT,), float(i)) for i in range(8)]
        press()
        before = session.stats.tier_used_bytes

        def disturb() -> bool:
            for tensor in tensors:
                tensor.add_(100)
            more = [torch.full((COUNT,), 7.0) for _ in range(16)]  # a child has no budget
            right = [t[9].item() for t in tensors] == [100.0 + i for i in range(8)]
            tensors.clear()
            return right and sum(t[0].item() for t in more) == 16 * 7

        assert child_says(disturb)
        assert session.stats.tier_used_bytes == before
        press()
        assert all(map(is_full_of, tensors, range(8)))


def test_a_child_opens_the_doors_too():
    with memfit.session(BUDGET, "disk"):
        tensor, other = evicted(), evicted()
        assert child_says(lambda: tensor.numpy()[9] == 9 and tensor.tolist() == other.tolist())
        assert not is_resident(tensor)


def test_a_child_can_train():
    with memfit.session(4 * BUDGET, "disk"):
        nets = [torch.nn.Linear(512, 512) for _ in range(6)]
        net = nets[0]
        torch.full((BUDGET,), 1.0)
        assert not is_resident(net.weight)

        def train() -> bool:
            optimizer = torch.optim.Adam(net.parameters())
            net(torch.ones(4, 512)).sum().backward()
            optimizer.step()
            return bool(net.weight.isfinite().all())

        assert child_says(train)


def test_a_child_s_end_lets_the_parent_use_its_slots_again():
    with memfit.session(BUDGET, "disk") as session:
        others = session.stats.live_bytes
        for _ in range(6):
            tensors = [torch.full((COUNT,), float(i)) for i in range(8)]
            press()
            assert child_says(lambda tensors=tensors: tensors[0][0].item() == 0)
            del tensors
        press()
        assert session.stats.tier_used_bytes < others + 20 * COUNT * 4  # not 6 rounds of 16 tensors


def test_a_child_of_a_child_reads_too():
    with memfit.session(BUDGET, "disk"):
        tensor = evicted()
        assert child_says(lambda: child_says(lambda: torch.equal(tensor, ramp())), press)


def test_a_subprocess_started_in_a_session_knows_nothing_of_it():
    with memfit.session(BUDGET, "disk"):
        evicted()
        done = subprocess.run([sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
                              capture_output=True, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 0 and int(done.stdout) <= 5


SPAWN = """
    import torch, memfit
    from torch.utils.data import DataLoader, TensorDataset

    def main():
        with memfit.session(1 << 20, "disk") as session:
            rows = TensorDataset(torch.arange(16.0)[:, None].expand(16, 1 << 12).clone())
            pressure = [torch.full((1 << 16,), 1.0) for _ in range(8)]
            loader = DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="spawn")
            for epoch in range(2):
                for (batch,) in loader:
                    for t in pressure:
                        t.add_(1)
                    print(batch[:, 7].tolist())
            assert session.stats.evictions > 0

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_spawned_workers_get_evicted_rows(tmp_path: Path):
    expected = [str([4.0 * i + j for j in range(4)]) for i in range(4)]
    assert script_prints(tmp_path, SPAWN) == expected * 2

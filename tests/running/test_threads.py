"""Threads and processes: several use the budget at once, and what one does never harms another."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import memfit
from running.children import child_says
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]
SMALL = COUNT // 8  # floats: 32 KiB
THREADS = 4
TIERS = ["ram", "disk"]


def is_full_of(tensor: torch.Tensor, value: float) -> bool:
    return tensor.min().item() == tensor.max().item() == value


def in_threads(*jobs: Callable[[], object]) -> list[object]:
    """Run every job in a thread of its own, all at once; returns the results or raises the first error."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(timeout=40) for future in [pool.submit(job) for job in jobs]]


def churn(seed: int, rounds: int = 60) -> float:
    """Make, change and drop tensors, more at a time than the budget holds."""
    kept = [torch.full((SMALL,), float(seed + i)) for i in range(40)]
    for round_ in range(rounds):
        kept[round_ % 40] = kept[(round_ + 5) % 40] * 0.5 + kept[(round_ * 7) % 40]
        kept[(round_ + 3) % 40].add_(1)
    return sum(t.double().sum().item() for t in kept)


@pytest.mark.parametrize("tier", TIERS)
def test_threads_with_tensors_of_their_own(tier):
    plain = [churn(seed) for seed in range(THREADS)]
    with memfit.session(BUDGET, tier) as session:
        assert in_threads(*(lambda s=seed: churn(s) for seed in range(THREADS))) == plain
        assert session.stats.evictions > 0


def test_writes_of_ops_that_made_way_for_others_are_kept():
    def count(seed: int) -> list[float]:
        counters, one = [torch.full((COUNT,), float(seed)) for _ in range(3)], torch.ones(COUNT)
        for _ in range(40):
            for counter in counters:
                counter.add_(one)
        return [f(counter).item() for counter in counters for f in (torch.min, torch.max)]

    with memfit.session(3 * 4 * COUNT, "ram", plan=False) as session:
        counted = in_threads(*(lambda s=seed: count(s) for seed in range(THREADS)))
        assert session.stats.evictions > 0
    assert counted == [[seed + 40.0] * 6 for seed in range(THREADS)]


@pytest.mark.parametrize("tier", TIERS)
def test_threads_that_read_the_same_evicted_tensors(tier):
    with memfit.session(BUDGET, tier):
        shared = [torch.full((SMALL,), float(i)) for i in range(64)]

        def read_all(start: int) -> list[float]:
            order = [(start * 13 + i * 7) % 64 for i in range(192)]
            return [shared[i][5].item() + shared[i].sum().item() / SMALL - 2 * i for i in order]

        assert in_threads(*(lambda s=s: read_all(s) for s in range(THREADS))) == [[0.0] * 192] * THREADS


@pytest.mark.parametrize("tier", TIERS)
def test_threads_that_write_to_parts_of_the_same_tensors(tier):
    with memfit.session(BUDGET, tier):
        shared = [torch.zeros(THREADS, SMALL) for _ in range(12)]

        def add(row: int) -> None:
            for number in range(30 * 12):
                shared[number % 12][row].add_(1)

        in_threads(*(lambda r=row: add(r) for row in range(THREADS)))
        assert all(is_full_of(t, 30) for t in shared)


def test_memory_freed_by_another_thread_than_the_one_that_made_it():
    with memfit.session(BUDGET, "ram") as session:
        gc.collect()  # what earlier tests have left may be adopted, and die at any time
        others = session.stats.live_bytes
        made: list[torch.Tensor] = []
        in_the_tier = []
        for _ in range(5):
            in_threads(lambda: made.extend(torch.full((SMALL,), 1.0) for _ in range(48)))
            in_threads(lambda: made.__delitem__(slice(0, 24)), lambda: press())
            made.clear()
            in_the_tier.append(session.stats.tier_used_bytes)
        assert session.stats.live_bytes <= others
        assert in_the_tier[-1] <= in_the_tier[0] + SMALL * 4


def test_what_dies_while_another_thread_s_op_uses_it():
    """The op's own reference is the last one: its block must live to the op's end."""
    with memfit.session(BUDGET, "ram"):
        for _ in range(40):
            slot = [torch.ones(256, 256)]

            def multiply(slot: list[torch.Tensor] = slot) -> float:
                tensor = slot[0]
                return (tensor @ tensor)[0, 0].item()

            results = in_threads(multiply, lambda slot=slot: slot.__setitem__(0, torch.ones(256, 256)))
            assert results[0] == 256


def loss_and_gradients(rounds: int) -> list[list[float]]:
    torch.manual_seed(1)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(24)))
    net.train()
    seen = []
    for _ in range(rounds):
        net.zero_grad()
        loss = net(torch.ones(256, 64)).pow(2).mean()
        loss.backward()
        seen.append([loss.item(), *(p.grad.double().sum().item() for p in net.parameters())])
    return seen


def test_backward_in_a_thread():
    plain = loss_and_gradients(2)
    with memfit.session(BUDGET, "ram") as session:
        assert in_threads(lambda: loss_and_gradients(2)) == [plain]
        assert session.stats.evictions > 0


def test_forward_in_one_thread_and_backward_in_another():
    def graph() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = torch.linspace(-1, 1, COUNT // 4, requires_grad=True)
        value = leaf
        for _ in range(40):
            value = (value * 1.01).sin()
        return leaf, value.sum()

    leaf, loss = graph()
    loss.backward()
    with memfit.session(BUDGET, "ram") as session:
        ((inside, loss),) = in_threads(graph)
        in_threads(loss.backward)
        assert torch.equal(inside.grad, leaf.grad)
        assert session.stats.evictions > 0


def test_two_backwards_at_once_accumulate_into_the_same_leaf():
    with memfit.session(BUDGET, "ram"):
        leaf = torch.ones(SMALL, requires_grad=True)

        def step() -> None:
            for _ in range(20):
                ((leaf * 2).clone() * 3).sum().backward()

        in_threads(step, press, press)
        assert is_full_of(leaf.grad, 120)


def test_kernels_with_threads_of_their_own_see_resident_inputs():
    torch.set_num_threads(2)
    with memfit.session(4 * BUDGET, "ram"):
        tensors = [torch.full((512, 512), float(i)) for i in range(8)]
        assert [(t @ t)[3, 3].item() for t in tensors] == [512.0 * i * i for i in range(8)]
        assert [t.sum().item() for t in tensors] == [512.0 * 512 * i for i in range(8)]


class Worker(threading.Thread):
    """Multiplies matrices, more than fit, until it is told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stop, self.count, self.wrong = threading.Event(), 0, 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            kept = [torch.full((128, 128), float(i)) for i in range(24)]
            while not self.stop.is_set():
                for i, tensor in enumerate(kept):
                    self.wrong += (tensor @ tensor)[0, 0].item() != 128.0 * i * i
                    self.count += 1
        except BaseException as error:  # noqa: B036
            self.error = error

    def finish(self) -> None:
        self.stop.set()
        self.join(timeout=30)
        assert not self.is_alive() and self.error is None
        assert self.count > 0 and self.wrong == 0


@pytest.mark.parametrize("tier", TIERS)
def test_a_session_that_ends_while_another_thread_is_in_an_op(tier):
    for _ in range(4):
        worker = Worker()
        with memfit.session(BUDGET, tier):
            worker.start()
            press()
            time.sleep(0.03)
        time.sleep(0.01)
        worker.finish()


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

    plain = train()
    with memfit.session(2 * BUDGET, "disk") as session:
        limited = train()
        assert session.stats.evictions > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, limited, strict=True))


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


def test_forks_while_other_threads_run_ops():
    """The engine's mutex is free in the child, whoever held it at the fork."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            churn(1, rounds=5)

    with memfit.session(2 * BUDGET, "ram"):
        tensor = evicted()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                assert child_says(lambda: tensor[99].item() == 99 and torch.ones(99).sum().item() == 99)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_a_subprocess_started_in_a_session_knows_nothing_of_it():
    with memfit.session(BUDGET, "disk"):
        evicted()
        done = subprocess.run([sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
                              capture_output=True, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 0 and int(done.stdout) <= 5


def script_prints(folder: Path, source: str) -> list[str]:
    """Run a script in a process of its own, which may crash, and return the lines it prints."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


START = """
    import threading, time, torch, memfit
    size = 1200
    torch.set_num_threads(1)
    a, b = torch.ones(size, size), torch.ones(size, size)
    for _ in range(3):
        results = []
        thread = threading.Thread(target=lambda: results.append(a @ b))
        thread.start()
        time.sleep(0.005)
        with memfit.session(16 * size * size, "ram"):
            for _ in range(8):
                torch.full((size, size), 5.0)
            thread.join()
        print(results[0].min().item(), results[0].max().item())
"""


def test_an_op_that_runs_while_a_session_starts_keeps_its_inputs(tmp_path: Path):
    assert script_prints(tmp_path, START) == ["1200.0 1200.0"] * 3


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

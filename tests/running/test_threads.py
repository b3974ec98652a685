"""Threads: several use the budget at once, and what one does never harms another."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import memfit
from running.children import child_says, script_prints
from running.pressure import BUDGET, COUNT, evicted, is_full_of, press
from running.side_by_side import repeated

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]
SMALL = COUNT // 8  # floats: 32 KiB
THREADS = 4
PR_SET_NAME = 15
TIERS = ["ram", "disk", "disk,compress"]


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


@pytest.mark.copied("what there is room for beside other threads")
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


@pytest.mark.unstressed("how often storages leave")
def test_who_waits_for_a_turn_takes_nobodys_place():
    """Each op needs a twelfth of the budget. A thread that steps aside wakes others that wait as it does."""
    threads, each, rounds = 6, 6, 20

    def work() -> list[float]:
        tensors = [torch.zeros(COUNT) for _ in range(each)]
        for _ in range(rounds):
            for tensor in tensors:
                tensor.add_(1)
        return [tensor.amax().item() for tensor in tensors]

    with memfit.session(12 * 4 * COUNT, "ram", device="cpu", plan=False) as session:
        assert in_threads(*[work] * threads) == [[rounds] * each] * threads
    assert session.stats.evictions < 2 * threads * rounds * each  # one for each op, if all have to come in


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


@pytest.mark.parametrize("takes_turns", [True, False])
def test_who_waits_for_room_is_woken_when_another_s_op_ends(takes_turns):
    """Nothing else ends afterwards. Threads of that name carry out collectives, whose ops take no turns."""
    begun = threading.Event()

    def hold(given: torch.Tensor) -> torch.Tensor:
        begun.set()
        time.sleep(0.5)
        return given.new_empty(1)

    def allocate() -> float:
        if not takes_turns:
            ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_gloo_runloop")
        begun.wait()
        began = time.monotonic()
        torch.empty(2 * COUNT)
        return time.monotonic() - began

    with torch.library._scoped_library("memfit_threads", "DEF") as library:
        library.define("hold(Tensor given) -> Tensor")
        library.impl("hold", hold, "CPU")
        with memfit.session(BUDGET, "ram", map="never", plan=False):
            _, waited = in_threads(lambda: torch.ops.memfit_threads.hold(torch.zeros(3 * COUNT)), allocate)
    assert 0.3 < waited < 5


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


@pytest.mark.copied("what there is room for at the end")
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


def test_forks_while_other_threads_run_ops():
    """The engine's mutex is free in the child, whoever held it at the fork."""

    def work() -> None:
        churn(1, rounds=5)

    with memfit.session(2 * BUDGET, "ram"):
        tensor = evicted()
        with repeated(work, work):
            for _ in range(8):
                assert child_says(lambda: tensor[99].item() == 99 and torch.ones(99).sum().item() == 99)


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


@pytest.mark.long
def test_an_op_that_runs_while_a_session_starts_keeps_its_inputs(tmp_path: Path):
    assert script_prints(tmp_path, START) == ["1200.0 1200.0"] * 3

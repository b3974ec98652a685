"""What must hold beside libraries' own memory, other threads and other devices' ops.

Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py).
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import memfit
from benchmarks.common import companions
from benchmarks.common.waiting import wait_for_plans
from cuda_sim.cases_memory import assert_numbered, numbered
from cuda_sim.cases_times import with_modelled_times
from cuda_sim.cases_training import plainly
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import QUIET, after_each_step, assert_equal, events, mlp, on_host, stepping
from memfit.planning.lifetimes import minimum_budget
from memfit.running import engine
from memfit.running.session import Session
from running.doors.outside import through_ctypes
from running.side_by_side import repeated

WORKSPACE = 64 << 10


def allocator() -> int | None:
    """Return the address of the allocator that torch asks for device memory."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so"))
    return ctypes.c_void_p.in_dll(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE").value


def workspaces_that_stay_keep_no_plan_away(gpu: Gpu) -> None:
    plain, _ = plainly(lambda: events(QUIET))
    before = allocator()
    with gpu.workspaces(WORKSPACE):
        for budget in ("90%", "75%", "65%"):
            torch.manual_seed(0)
            with Session(budget, device="cuda") as session:
                limited = events(QUIET)
            assert_equal(plain, limited)
            assert session.stats.plans > 0 and session.stats.swaps > 0 and session.unplanned == (), budget
            assert allocator() == before, "torch's own allocator is back where it was"


def workspaces_count_in_the_smallest_budget(gpu: Gpu) -> None:
    def smallest() -> int:
        with memfit.session(None, device="cuda", plan=False) as session:
            events(QUIET[:4])
        return minimum_budget(session.trace)[0]

    without = smallest()
    with gpu.workspaces(WORKSPACE):
        assert smallest() == without + 2 * WORKSPACE  # the forward pass's thread, and the backward pass's


def ops_on_the_host_disturb_no_plan(gpu: Gpu) -> None:
    """As the thread does that pins a loader's batches: at any time, in any number."""
    plain, _ = plainly(lambda: events(QUIET * 2))
    rounds: list[float] = []

    def work() -> None:
        batch = torch.empty(16)
        batch.copy_(torch.ones(16))
        rounds.append((batch * 2).sum().item())

    torch.manual_seed(0)
    with Session("65%", device="cuda") as session, repeated(work, every_s=0.0005):
        limited = events(QUIET * 2)
    assert_equal(plain, limited)
    stats = session.stats
    assert len(rounds) > 20 and set(rounds) == {32.0}
    assert stats.plans > 0 and stats.swaps > 0 and session.planned_iterations >= len(QUIET)
    assert stats.derailments == stats.missing_ops == 0 and len(session.signature_counts) <= 2


def an_op_on_the_host_now_and_then_disturbs_no_plan(gpu: Gpu) -> None:
    plain, _ = plainly(lambda: events(QUIET * 2))
    steps = count(1)

    def log() -> None:
        if next(steps) % 5 == 0:
            torch.ones(3).cumsum(0).sum().item()

    torch.manual_seed(0)
    with after_each_step(log), Session("65%", device="cuda") as session:
        limited = events(QUIET * 2)
    assert_equal(plain, limited)
    assert session.stats.derailments == 0 and session.planned_iterations >= len(QUIET)


class Rows(Dataset[Tensor]):
    """Batches on the host, each the same in every run."""

    def __len__(self) -> int:
        return 8 * 256

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((128,), math.sin(index))


def a_loader_whose_workers_are_forked_at_any_time_disturbs_nothing(gpu: Gpu) -> None:
    """In a forked child CUDA answers nothing. Epochs begin while iterations are recorded, and by plan."""
    children: list[int] = []

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        net = mlp(128, 6)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
        losses = []
        for _ in range(4):
            for batch in DataLoader(Rows(), batch_size=256, num_workers=2, pin_memory=True):
                optimizer.zero_grad()
                loss = net(batch.cuda(non_blocking=True)).pow(2).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            children.append(child_that_computes())
        return on_host([*losses, *net.parameters()])

    plain = train()
    with Session("65%", device="cuda") as session:
        limited = train()
    assert_equal(plain, limited)
    assert children == [0] * 8
    assert session.stats.plans > 0 and session.stats.swaps > 0 and session.planned_iterations >= 12


def distributed_training_stays_planned(gpu: Gpu) -> None:
    wait_for_plans()
    steps = 40

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        with companions.group_of_one():
            net = nn.parallel.DistributedDataParallel(mlp(companions.WIDTH, 6))
            return on_host(companions.train(net, steps, lambda _: None, batch=256))

    plain = train()
    with Session("65%", device="cuda") as session:
        limited = train()
    assert_equal(plain, limited)
    assert session.stats.swaps > 0 and session.planned_iterations >= steps // 2, session.unplanned


def child_that_computes() -> int:
    """Return what became of a forked process that has used the host alone."""
    child = os.fork()
    if child == 0:
        os._exit(int(torch.ones(1000).cumsum(0)[-1].item() != 1000))
    return os.waitpid(child, 0)[1]


def a_full_gpu_is_adopted_while_another_thread_lives(gpu: Gpu) -> None:
    """What ops of other threads may be reading is kept for two seconds, but for want of memory no longer than that."""
    tensors, over = numbered(26), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with memfit.session(30 * MIB, device="cuda"):
            for tensor in tensors:
                tensor.add_(0)
            assert_numbered(tensors)
    finally:
        over.set()
        thread.join()
    assert_numbered(tensors)


def a_model_moves_in_within_the_budget(gpu: Gpu) -> None:
    """But for what torch keeps of a part whose other storages are still in use, and a little."""
    tensors = numbered(24, 8 * MIB)
    torch.cuda.synchronize()
    gpu.reset_peak()
    before = gpu.count("in_use")
    with memfit.session(before + 8 * MIB, device="cuda"):
        assert gpu.count("peak") <= before + 8 * MIB + 48 * MIB
        assert_numbered(tensors)


def what_asks_for_all_memory_makes_do_with_less(gpu: Gpu) -> None:
    with memfit.session(8 * MIB, device="cuda") as session:
        image, weight = torch.ones(2, 4, 16, 16, device="cuda"), torch.full((3, 4, 1, 1), 2.0, device="cuda")
        kept = numbered(4)
        found = torch.cudnn_convolution(image, weight, (0, 0), (1, 1), (1, 1), 1, True, False, False)
        assert found.shape == (2, 3, 16, 16) and found.amin().item() == found.amax().item() == 8
        assert_numbered(kept)
        assert session.stats.peak_footprint_bytes <= 8 * MIB


class Searching(torch.autograd.Function):
    """A convolution that tries what memory there is, as with `cudnn.benchmark`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(images, weight)
        return torch.cudnn_convolution(images, weight, (0, 0), (1, 1), (1, 1), 1, True, False, False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        images, weight = ctx.saved_tensors
        to_images, to_weight, _ = torch.ops.aten.convolution_backward(
            gradient, images, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, True, False)
        )
        return to_images, to_weight


def convolutions_that_look_for_memory_are_in_the_plan(gpu: Gpu) -> None:
    wait_for_plans()
    steps = 30

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(16, 16, 1, 1).mul(0.1).cuda()) for _ in range(6)]
        optimizer = torch.optim.AdamW(weights, lr=1e-3, foreach=True)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            images = torch.ones(32, 16, 32, 32, device="cuda")  # 2 MiB
            for weight in weights:
                images = nn.functional.gelu(Searching.apply(images, weight))
            losses.append(images.square().mean())
            losses[-1].backward()
            optimizer.step()
        return on_host([*(loss.detach() for loss in losses), *weights])

    plain = train()
    with Session(20 * MIB, device="cuda") as session:
        limited = train()
    assert_equal(plain, limited)
    assert session.stats.swaps > 0 and session.planned_iterations >= steps // 2, session.unplanned


class Launcher:
    """Asks its tensors for their addresses, makes room for more, and works through the addresses, as Triton's does.

    `ask` is a function of the launcher's module, as the one that asks is Triton's own.
    """

    def __init__(self, fn: Callable[[int, int], None]) -> None:
        self.fn = fn

    def run(self, *tensors: Tensor, **options: object) -> None:
        seen = [(self.ask(tensor), tensor.numel()) for tensor in tensors]
        torch.empty(1 << 16, device="cuda")
        torch.cuda.synchronize()  # the simulated memory can be read then as the host's can
        for address, numbers in seen:
            self.fn(address, numbers)


def halve(address: int, numbers: int) -> None:
    through_ctypes(address, numbers)[:] *= 0.5


def launches_of_kernels_are_in_the_plan_and_pin_nothing(gpu: Gpu) -> None:
    module = ModuleType("triton.runtime.jit")
    exec("def ask(self, tensor): return tensor.data_ptr()", vars(module))
    module.JITFunction = type("JITFunction", (Launcher,), {"run": Launcher.run, "ask": module.ask})
    sys.modules[module.__name__] = module
    kernel = module.JITFunction(halve)

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        net = mlp(128, 6)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
        for _ in range(len(QUIET)):
            optimizer.zero_grad()
            net(torch.randn(256, 128).cuda()).pow(2).mean().backward()
            for parameter in net.parameters():
                kernel.run(parameter.grad)
            optimizer.step()
        return on_host(net.parameters())

    plain = train()
    with Session("65%", device="cuda") as session:
        limited = train()
    assert_equal(plain, limited)
    stats = session.stats
    assert stats.plans > 0 and stats.swaps > 0 and stats.derailments == 0 and session.unplanned == ()
    assert "triton::halve" in {op.name for op in session.trace.ops}
    assert stats.peak_footprint_bytes <= stats.budget_bytes


def the_first_plan_on_a_large_gpu_has_its_room_beside_workspaces(gpu: Gpu) -> None:
    """They lie below the small storages: a hole between those and a plan's zone would be known to no search."""
    net = with_modelled_times(gpu, layers=12)
    accepted: list[bool] = []
    native = engine.load()
    use_plan = native.use_plan

    def noted(*given: object, **named: object) -> bool:
        accepted.append(use_plan(*given, **named))
        return accepted[-1]

    train = stepping(net, torch.ones(16384, 4096, device="cuda"))
    train(2)
    peak = torch.cuda.max_memory_allocated()
    with gpu.workspaces(32 * MIB), pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "use_plan", noted)
        for percent in (90, 80, 60, 40):
            accepted.clear()
            with Session(percent * peak // 100, "ram", device="cuda", plan_cache=False) as session:
                train(12)
                assert accepted and accepted[0], percent
                assert all(accepted) and session.planned is not None, (percent, accepted)

"""What must hold of times, on a virtual clock, which is the same in every run.

Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py).
"""

from __future__ import annotations

from itertools import pairwise

import torch

from benchmarks.common.waiting import wait_for_plans
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import mlp
from memfit.machine import profile
from memfit.running.session import Session
from memfit.tracing.roofline import accelerator_named

LINK = profile("pcie5").into
SIDE = 1024
OPS = 40


def elapsed_us(gpu: Gpu, session: Session | None = None) -> tuple[float, int]:
    """Return the time of matrix products whose results are all kept, until the GPU is done, and how many left."""
    square = torch.ones(SIDE, SIDE, device="cuda")
    torch.cuda.synchronize()
    begin = gpu.count("now")
    kept = [square @ square for _ in range(OPS)]
    torch.cuda.synchronize()
    end, evictions = gpu.count("now"), session.stats.evictions if session else 0
    assert {int(each[0, 0].item()) for each in kept} == {SIDE}
    return (end - begin) / 1000, evictions


def times_repeat_exactly(gpu: Gpu) -> None:
    gpu.keep_time(accelerator_named("h200"), LINK)
    assert elapsed_us(gpu) == elapsed_us(gpu) > (0, 0)


def evictions_run_beside_the_ops_before_them(gpu: Gpu) -> None:
    """They take longer than the ops here, so that the ops take no time of their own."""
    gpu.keep_time(accelerator_named("h200"), LINK)
    plain_us, _ = elapsed_us(gpu)
    with Session(32 * MIB, "ram", device="cuda", plan=False) as session:
        limited_us, evictions = elapsed_us(gpu, session)
    copies_us = evictions * LINK.copy_us(4 * SIDE * SIDE)
    assert OPS - 8 <= evictions < OPS and copies_us > 1.2 * plain_us
    assert limited_us < copies_us + 0.3 * plain_us


def plans_on_a_large_gpu_take_what_was_foreseen(gpu: Gpu) -> None:
    """And nothing looks for better ones, nor waits for the GPU, which is many iterations behind the host."""
    gpu.forget_values()
    gpu.keep_time(accelerator_named("h200"), LINK)
    wait_for_plans()
    net = mlp(4096, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.ones(16384, 4096, device="cuda")
    ends, waits = [], []

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
            waits.append(gpu.count("waits"))

    train(2)
    peak = torch.cuda.max_memory_allocated()
    with Session(7 * peak // 10, "ram", device="cuda") as session:
        train(50)
        planned, stats = session.planned, session.stats
        assert session.planned_iterations >= 35 and stats.plans <= 3
    assert planned is not None and planned.predicted is not None and stats.swaps > 0
    torch.cuda.synchronize()
    steps_us = sorted(1000 * a.elapsed_time(b) for a, b in pairwise(ends[-21:]))
    assert abs(steps_us[10] / planned.predicted.iteration_us - 1) < 0.02
    assert waits[-1] == waits[-21] and steps_us[-1] < 1.02 * steps_us[0]

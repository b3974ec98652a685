"""What must hold of times, on a virtual clock, which is the same in every run.

Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from benchmarks.common.waiting import count_plans, wait_for_plans
from cuda_sim.simulator import MIB, Gpu, Host
from cuda_sim.training import mlp, stepping
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
    with Session(32 * MIB, "ram", device="cuda", plan=False, moves="swap") as session:
        elapsed_us(gpu)  # a product is tried once
        before = session.stats.evictions
        limited_us, evictions = elapsed_us(gpu, session)
        evictions -= before
    copies_us = evictions * LINK.copy_us(4 * SIDE * SIDE)
    assert OPS - 8 <= evictions < OPS and copies_us > 1.2 * plain_us
    assert limited_us < copies_us + 0.3 * plain_us


def us_until_done(gpu: Gpu, work: Callable[[], object]) -> float:
    """Return the microseconds that `work` takes, until the GPU is done."""
    torch.cuda.synchronize()
    begin = gpu.count("now")
    work()
    torch.cuda.synchronize()
    return (gpu.count("now") - begin) / 1000


def what_the_host_does_is_on_the_clock(gpu: Gpu) -> None:
    """It reads what comes to ordinary memory, locks memory before copies go there, and ops take longer in a session."""
    host = Host(session_op_ns=50_000, reading_bytes_per_s=1e9, locking_bytes_per_s=2e9, both_factor=0.8)
    gpu.keep_time(accelerator_named("h200"), LINK, host)
    size = 64 * MIB
    there, locked = torch.ones(size // 4, device="cuda"), torch.ones(2, size // 4).pin_memory()
    alone = us_until_done(gpu, lambda: locked[0].copy_(there, non_blocking=True))
    assert abs(alone - LINK.copy_us(size)) < 50, "it was locked when it was allocated"
    assert abs(us_until_done(gpu, there.cpu) - alone - 1e6 * size / 1e9) < 50

    fresh = torch.empty(size // 4)  # a thread beside the program locks it
    assert gpu.runtime.cudaHostRegister(ctypes.c_void_p(fresh.data_ptr()), ctypes.c_size_t(size), 0) == 0
    assert abs(us_until_done(gpu, lambda: fresh.copy_(there, non_blocking=True)) - alone - 1e6 * size / 2e9) < 50

    other, back = torch.cuda.Stream(), torch.empty_like(there)

    def both_ways() -> None:
        locked[0].copy_(there, non_blocking=True)
        with torch.cuda.stream(other):
            back.copy_(locked[1], non_blocking=True)

    assert abs(us_until_done(gpu, both_ways) - alone / 0.8) < 50

    def small_ops() -> None:
        for _ in range(100):
            there[:4].add_(1)

    plain = us_until_done(gpu, small_ops)
    gpu.in_session(True)
    assert abs(us_until_done(gpu, small_ops) - plain - 100 * 50) < 50


def plans_on_a_large_gpu_come_when_the_clock_has_come_as_far_as_they_take_to_make(gpu: Gpu) -> None:
    """Training waits for the first one no longer than it does anywhere, and goes on without one."""
    gpu.forget_values()
    gpu.keep_time(accelerator_named("h200"), LINK)
    count_plans(gpu, 1e4)
    train = stepping(mlp(4096, 8), torch.ones(16384, 4096, device="cuda"))
    train(2)
    budget = 7 * torch.cuda.max_memory_allocated() // 10
    with Session(budget, "ram", device="cuda", plan_cache=False) as session:
        begin = gpu.count("now")
        train(20)
        torch.cuda.synchronize()
        assert gpu.count("now") - begin > 2e9 and session.stats.plans == 0
        gpu.host_takes(1e6)
        train(5)
        assert session.stats.plans == 1


@dataclass
class Trained:
    """What 50 steps within 70 % of the peak took, by plan.

    Attributes:
        foreseen_us: What the plan's iteration is to take.
        steps_us: What the last 20 took, ascending.
        waits: Of the host, until the end of each step.
    """

    foreseen_us: float
    steps_us: list[float]
    waits: list[int]


def trained(gpu: Gpu, net: nn.Sequential) -> Trained:
    """Train with activations of 256 MiB, of which some leave in each iteration."""
    ends, waits = [], []

    def step_ended() -> None:
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
        waits.append(gpu.count("waits"))

    train = stepping(net, torch.ones(16384, 4096, device="cuda"), step_ended)
    train(2)
    peak = torch.cuda.max_memory_allocated()
    with Session(7 * peak // 10, "ram", device="cuda") as session:
        train(50)
        planned, stats = session.planned, session.stats
        assert session.planned_iterations >= 35 and stats.plans <= 3
    assert planned is not None and planned.predicted is not None and stats.swaps > 0
    torch.cuda.synchronize()
    steps_us = sorted(1000 * a.elapsed_time(b) for a, b in pairwise(ends[-21:]))
    return Trained(planned.predicted.iteration_us, steps_us, waits)


def with_modelled_times(gpu: Gpu, layers: int = 8) -> nn.Sequential:
    """Keep times, and no values; return a network."""
    gpu.forget_values()
    gpu.keep_time(accelerator_named("h200"), LINK)
    wait_for_plans()
    return mlp(4096, layers)


def plans_on_a_large_gpu_take_what_was_foreseen(gpu: Gpu) -> None:
    """And nothing looks for better ones, nor waits for the GPU, which is many iterations behind the host."""
    found = trained(gpu, with_modelled_times(gpu))
    assert abs(found.steps_us[10] / found.foreseen_us - 1) < 0.02
    assert found.waits[-1] == found.waits[-21] and found.steps_us[-1] < 1.02 * found.steps_us[0]


def a_steady_program_on_a_large_gpu_is_planned_no_more_than_twice(gpu: Gpu) -> None:
    """It takes what is foreseen of its joint plan, whose re-runs are counted once, so that nothing is timed again."""
    with_modelled_times(gpu)
    layers = (module for _ in range(8) for module in (nn.Linear(512, 512), nn.GELU(), nn.GELU(), nn.GELU()))
    net = nn.Sequential(*layers).cuda()
    train = stepping(net, torch.ones(131072, 512, device="cuda"))
    train(2)
    with Session(6 * torch.cuda.max_memory_allocated() // 10, "ram", device="cuda", plan_cache=False) as session:
        train(20)
        plan, searches = session.planned, session.plan_searches
        train(280)
        assert session.plan_searches == searches <= 2 and session.stats.plans <= 2
    assert plan is not None and plan.predicted is not None
    assert plan.dropped and plan.added_us > 0.03 * plan.compute_us, "re-runs counted twice would be noticed"


def a_program_that_reads_a_number_waits_for_no_whole_storage_on_a_large_gpu(gpu: Gpu) -> None:
    """Storages are on their way out, each for 5 ms, when a third of the network has run and a number is asked for."""
    net, number = with_modelled_times(gpu), torch.ones(1, device="cuda")

    def ask(*_: object) -> None:
        number.item()

    net[len(net) // 3].register_forward_hook(ask)
    found = trained(gpu, net)
    assert found.steps_us[10] < found.foreseen_us + 1500


def what_runs_again_is_no_part_of_the_recorded_ops_on_a_large_gpu(gpu: Gpu) -> None:
    """Plans are made for the ops' own time, whatever was made again, copied or moved while they were recorded."""
    with_modelled_times(gpu)
    ops_us = []
    for percent in (120, 50):
        layers = (module for _ in range(8) for module in (nn.Linear(512, 512), nn.GELU(), nn.GELU(), nn.GELU()))
        train = stepping(nn.Sequential(*layers).cuda(), torch.ones(131072, 512, device="cuda"))
        torch.cuda.reset_peak_memory_stats()
        train(2)
        budget = percent * torch.cuda.max_memory_allocated() // 100
        with Session(budget, "ram", device="cuda", plan_cache=False) as session:
            train(3)
            assert (session.stats.recomputations > 0) == (percent < 100)
            train(1)
            trace = session.compressed_plan.trace()
        ops_us.append(sum(op.duration_us for op in trace.ops))
        del train
    assert abs(ops_us[1] / ops_us[0] - 1) < 0.01, ops_us

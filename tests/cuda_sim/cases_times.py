"""What must hold of times, on a virtual clock, which is the same in every run.

Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py).
"""

from __future__ import annotations

import torch

from cuda_sim.simulator import MIB, Gpu
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

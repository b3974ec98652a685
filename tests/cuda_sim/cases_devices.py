"""What must hold between the GPU of a session and another, whose memory no session answers for.

Each runs in a process of its own, on two simulated GPUs (test_cuda_sim.py). One that has "peers" in its name has GPUs
that reach each other's memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import memfit
from cuda_sim.cases_memory import numbered
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import assert_equal, on_host
from memfit.running.session import Session
from running.pressure import is_full_of

ROWS = 512


def copied_there_and_back() -> None:
    """Copies of plain bytes, of a part, and of rows and columns exchanged, of what is in the arena and what is not."""
    with memfit.session(6 * MIB, device="cuda:0") as session:
        here = numbered(10)
        there = [tensor.to("cuda:1") for tensor in here]
        assert all(is_full_of(tensor, number) for number, tensor in enumerate(there))
        squares = [tensor.view(ROWS, -1).t().to("cuda:1") for tensor in here]
        assert all(is_full_of(tensor, number) for number, tensor in enumerate(squares))
        for number, tensor in enumerate(there):
            tensor.add_(1)
            here[number].copy_(tensor, non_blocking=True)
            here[number].view(ROWS, -1).t()[: ROWS // 2].copy_(tensor.view(-1, ROWS)[: ROWS // 2])
        assert all(is_full_of(tensor, number + 1) for number, tensor in enumerate(here))
        ramp = torch.arange(ROWS * ROWS, dtype=torch.float32, device="cuda:1").view(ROWS, ROWS)
        here[3].view(-1)[: ROWS * ROWS].view(ROWS, ROWS).t().copy_(ramp)
        assert torch.equal(here[3].view(-1)[: ROWS * ROWS].view(ROWS, ROWS).t().cpu(), ramp.cpu())
        assert session.stats.evictions > 0 and session.stats.peak_footprint_bytes <= 6 * MIB


def a_session_says_that_it_leaves_another_gpu_alone(gpu: Gpu) -> None:
    said: list[str] = []
    with Session(6 * MIB, device="cuda:0", announce=said.append):
        torch.ones(4, device="cuda:0")
    assert said == ["the budget is that of cuda:0 alone; torch sees 1 other GPU, which is left as without memfit"]


def copies_to_another_gpu_and_back(gpu: Gpu) -> None:
    copied_there_and_back()


def copies_between_peers(gpu: Gpu) -> None:
    copied_there_and_back()


def copies_between_peers_that_knew_each_other_before(gpu: Gpu) -> None:
    """Torch asks once in a process."""
    square = torch.ones(8, 8, device="cuda:1")
    torch.zeros(8, 8, device="cuda:0").t().copy_(square)
    copied_there_and_back()
    copied_there_and_back()


def in_a_pipeline(steps: int) -> list[Tensor]:
    """Train two stages, each on its GPU."""
    torch.manual_seed(0)
    stages = [nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to(f"cuda:{index}") for index in (0, 1)]
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = torch.tanh(stages[0](torch.randn(512, 256).to("cuda:0")))
        stages[1](hidden.to("cuda:1")).square().mean().backward()
        optimizer.step()
    return on_host(parameters)


def a_pipeline_over_two_gpus_is_planned_for_the_one(gpu: Gpu) -> None:
    plain = in_a_pipeline(16)
    with Session("70%", device="cuda:0") as session:
        limited = in_a_pipeline(16)
    assert_equal(plain, limited)
    stats = session.stats
    assert stats.plans > 0 and stats.swaps > 0 and session.unplanned == ()
    assert stats.peak_footprint_bytes <= stats.budget_bytes

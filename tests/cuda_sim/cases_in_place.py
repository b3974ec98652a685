"""What must hold of outputs in the places of inputs on a GPU. Each runs in a process of its own, on a simulated one."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuda_sim.cases_recomputing import STEPS, TIER, Trained, at_fixed_steps, plainly, train, trained
from cuda_sim.simulator import Gpu
from cuda_sim.training import assert_equal, on_host
from memfit.running.session import Session
from running.planned.kernels import Forgetful, done_by
from running.planned.networks import CLASSES, Work
from running.planned.training import LEARNT

ODD = 11  # the step in which something is read that dies in the others


class Scaled(nn.Module):
    """Layers whose products die in an activation, and those of activations in a product; one is shown."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)
        self.activation: Callable[[Tensor], Tensor] = F.silu
        self.look_before: Callable[[Tensor], object] = lambda _: None
        self.look: Callable[[Tensor], object] = lambda _: None

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            y = layer(x)
            if number == len(self.layers) - 2:
                self.look_before(y)
            x = torch.tanh(y)
            if number == len(self.layers) - 2:
                self.look(y)
            del y
            x = x + self.activation(x.detach())
        return self.head(x)


SCALED = Work(Scaled, lambda size: torch.randn(size, 64), 8192)


def handed_over_a_step(result: Trained) -> set[int]:
    steady = result.stats[LEARNT:]
    return {after.handovers - before.handovers for before, after in zip(steady, steady[1:], strict=False)}


def outputs_take_the_places_of_dying_inputs(gpu: Gpu) -> None:
    plain = plainly(SCALED)
    for seed, moves in enumerate(("swap", "recompute", "joint", "swap")):
        gpu.delay(random.Random(seed).choice((0, 100, 1000)), seed)
        result = trained(SCALED, moves, "60%", plain)
        assert min(handed_over_a_step(result)) >= 2, moves
        last = result.stats[-1]
        assert last.plan_mismatches == last.failed_recomputations == last.failed_copies == 0
        gpu.delay(0)


def what_was_handed_over_is_made_again_when_it_is_read_after_all(gpu: Gpu) -> None:
    def train_and_look() -> list[Tensor]:
        seen: list[Tensor] = []
        made: list[Scaled] = []

        def network() -> Scaled:
            made.append(Scaled())
            return made[-1]

        def after(step: int) -> None:
            made[-1].look = (lambda y: seen.append(y.detach())) if step + 1 == ODD else lambda _: None

        return [*train(Work(network, SCALED.inputs, SCALED.batch), after, STEPS), *on_host(seen)]

    plain = train_and_look()
    for delay in (0, 300):
        gpu.delay(delay, delay)
        with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="swap", plan_cache=False) as session:
            assert_equal(plain, train_and_look())
            stats = session.stats
        assert stats.recomputations > 0 and stats.handovers > 0 and stats.failed_recomputations == 0
        gpu.delay(0)


def what_another_stream_still_reads_is_not_overwritten(gpu: Gpu) -> None:
    side = torch.cuda.Stream()

    def train_beside() -> list[Tensor]:
        sums: list[Tensor] = []

        def look(y: Tensor) -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                sums.append((y.detach() * 2).sum())
            y.record_stream(side)

        def network() -> Scaled:
            net = Scaled()
            net.look_before = look
            return net

        learnt = train(Work(network, SCALED.inputs, SCALED.batch), steps=STEPS)
        torch.cuda.synchronize()
        return [*learnt, *on_host(sums)]

    plain = train_beside()
    for delay in (0, 1000):
        gpu.delay(delay, delay + 1)
        with at_fixed_steps(), Session("60%", TIER, device="cuda", moves="swap", plan_cache=False) as session:
            assert_equal(plain, train_beside())
        assert session.stats.handovers > 0
        gpu.delay(0)


def what_comes_out_different_a_second_time_hands_nothing_over(gpu: Gpu) -> None:
    """No other look is taken at it on a GPU."""
    plain = plainly(SCALED)
    expected = handed_over_a_step(trained(SCALED, "swap", "60%", plain))
    kernel = Forgetful()
    with done_by(kernel.silu, "silu", "CUDA"):
        plain = plainly(SCALED)
        kernel.seen.clear()
        result = trained(SCALED, "swap", "60%", plain)
    assert kernel.repeated > 0, "it was tried"
    assert max(handed_over_a_step(result)) < min(expected)
    assert result.stats[-1].recomputations == 0

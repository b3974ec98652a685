"""Models that libraries have compressed train in a budget to the same bits, without a plan and with one."""

from __future__ import annotations

import gc
import hashlib
import random
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import memfit
from benchmarks.common.compressing import APPLIED, Training, cnn, gpt, probe
from running.planned.training import wait_for_plans

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

STEPS = 16  # as many as it takes to say that no plan found room
MODELS = {"gpt": lambda: gpt(64, layers=2, words=128), "probe": lambda: probe(256), "cnn": lambda: cnn(8, 16)}
# The library, the model, and what is done to it; the share of its peak that it trains in.
CASES = {
    "bitsandbytes' 8-bit Adam": ("bitsandbytes", "gpt", ["8bit-adam"], "60%"),
    "peft's adapters": ("peft", "gpt", ["lora"], "60%"),
    "adapters on torchao's 8-bit weights": ("torchao", "gpt", ["lora", "int8-frozen"], "60%"),
    "a head on torchao's 8-bit weights": ("torchao", "probe", ["int8-frozen"], "90%"),
    "adapters, with 8-bit Adam": ("bitsandbytes", "gpt", ["lora", "8bit-adam"], "60%"),
    "fewer channels": ("torch_pruning", "cnn", ["channels"], "75%"),
    "masks": ("torch", "gpt", ["prune"], "60%"),
    "bfloat16": ("torch", "gpt", ["bf16"], "60%"),
}


def made(model: str, techniques: list[str]) -> Training:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    training = MODELS[model]()
    for name in techniques:
        training = APPLIED[name](training, 8 if name == "lora" else 50)
    return training


def bits(tensors: Iterator[Tensor]) -> list[str]:
    found = []
    for tensor in tensors:
        plain = tensor.detach()
        if is_traceable_wrapper_subclass(plain):
            found += bits(getattr(plain, name) for name in plain.__tensor_flatten__()[0])
        else:
            found.append(hashlib.sha1(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest())
    return found


def everything(training: Training) -> Iterator[Tensor]:
    yield from training.model.parameters()
    yield from training.model.buffers()
    yield from (p.grad for p in training.model.parameters() if p.grad is not None)
    states = training.made.state.values() if training.made else []
    yield from (value for state in states for value in state.values() if isinstance(value, Tensor))


def train(training: Training, steps: int) -> list[str]:
    for _ in range(steps):
        training.step()
    return bits(everything(training))


@pytest.mark.long
@pytest.mark.parametrize("is_planned", [False, True], ids=["without a plan", "with one"])
@pytest.mark.parametrize("case", CASES)
def test_it_trains_to_the_same_bits(case, is_planned, monkeypatch):
    library, model, techniques, budget = CASES[case]
    pytest.importorskip(library)
    if "lora" in techniques:
        pytest.importorskip("peft")
    plain = train(made(model, techniques), STEPS)
    if is_planned:  # training waits for it
        wait_for_plans(monkeypatch)
    gc.collect()  # a model that is garbage would be in the peak that the budget is a share of
    limited = made(model, techniques)
    with memfit.session(budget, "ram", plan=is_planned, plan_cache=False) as session:
        for _ in range(STEPS):
            limited.step()
        stats = session.stats
    assert bits(everything(limited)) == plain
    assert stats.peak_footprint_bytes <= stats.budget_bytes and stats.peak_growth_bytes == 0
    assert stats.bytes_out + stats.bytes_discarded > 0
    assert (session.planned_iterations > 0) == is_planned

"""Networks drawn at random train to the same bits by plans below their largest op's working set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from torch import nn

from running.plainly import as_plainly
from running.planned.too_large import budget_below, tier_of
from running.planned.training import wait_for_plans

STEPS = 11

LAYERS = {
    "linear": lambda width: nn.Linear(width, width),
    "gelu": lambda width: nn.GELU(),
    "relu": lambda width: nn.ReLU(),
    "dropout": lambda width: nn.Dropout(0.3),
    "norm": lambda width: nn.LayerNorm(width),
    "batch norm": lambda width: nn.BatchNorm1d(width),
    "softmax": lambda width: nn.Softmax(1),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adam, one by one": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
}


def training(layers: list[str], width: int, rows: int, words: int, optimizer: str) -> Callable[[], list]:
    """Return a training loop that returns its losses and weights."""

    def train(steps: int = STEPS) -> list:
        torch.manual_seed(0)
        net = nn.Sequential(*(LAYERS[name](width) for name in layers), nn.Linear(width, words))
        made, losses = OPTIMIZERS[optimizer](net.parameters()), []
        for _ in range(steps):
            made.zero_grad()
            loss = F.cross_entropy(net(torch.randn(rows, width)), torch.randint(0, words, (rows,)))
            loss.backward()
            made.step()
            losses.append(loss.item())
        return [torch.tensor(losses), *(value for value in net.state_dict().values())]

    return train


ANY = {
    "layers": st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5),
    "width": st.sampled_from([96, 128, 200]),
    "rows": st.sampled_from([64, 100, 150]),
    "words": st.sampled_from([3000, 5120]),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "share": st.floats(0.55, 1),
    "moves": st.sampled_from(["joint", "swap"]),
    "kind": st.sampled_from(["ram", "disk"]),
    "split": st.sampled_from(["auto", "never"]),
}
pytestmark = [pytest.mark.unstressed("what is mapped by a plan"), pytest.mark.filterwarnings("ignore")]


def drawn(layers: list[str], width: int, rows: int, words: int, optimizer: str, share: float, moves: str) -> example:
    """Return a network on a disk tier, split where it can be, that has been a fault's."""
    return example(layers=layers, width=width, rows=rows, words=words, optimizer=optimizer, share=share, moves=moves,
                   kind="disk", split="auto")  # fmt: skip


# What an op makes, or brings in, after frames have taken all that was left:
@pytest.mark.long
@drawn(["batch norm"], 96, 100, 3000, "adam", 0.6875, "joint")
@drawn(["gelu", "linear", "dropout", "linear"], 128, 100, 3000, "sgd", 0.7086, "joint")
# Slices that were mapped themselves:
@drawn(["gelu"], 200, 150, 5120, "sgd", 0.7518, "joint")
# Frames that lay in the way of the op's inputs, beside an empty shelf:
@drawn(["gelu", "norm", "batch norm", "softmax"], 200, 100, 3000, "adam, one by one", 0.7187, "joint")
@pytest.mark.timeout(600)
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(**ANY)
def test_some_networks_train_to_the_same_bits(tmp_path_factory, **network):
    check(tmp_path_factory, **network)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(**ANY)
def test_networks_train_to_the_same_bits(tmp_path_factory, **network):
    check(tmp_path_factory, **network)


def check(tmp_path_factory, layers, width, rows, words, optimizer, share, moves, kind, split) -> None:
    """Train plainly and below the largest op's working set, and compare."""
    program = training(layers, width, rows, words, optimizer)
    budget, tier = budget_below(program, share), tier_of(kind, tmp_path_factory.mktemp)
    with pytest.MonkeyPatch.context() as patch:  # training waits for its plan
        wait_for_plans(patch)
        session = as_plainly(program, budget, tier, plan_cache=False, moves=moves, split=split)
    stats = session.stats
    assert stats.peak_footprint_bytes <= budget and stats.peak_growth_bytes == 0
    event(
        f"{'planned' if session.planned_iterations else 'unplanned'}, {'mapped' if stats.mapped_ops else 'whole'}, "
        f"{'split' if stats.split_ops else 'unsplit'}"
    )

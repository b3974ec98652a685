"""Networks of images, drawn at random, train to the same bits where their ops run in slices, mapped, or both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import memfit
from memfit.errors import BudgetError
from running.plainly import same_bits
from running.planned.too_large import budget_below, tier_of


class Attention(nn.Module):
    """Each pixel of a smaller image attends to all others."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.project, self.dropout = nn.Linear(channels, 3 * channels), dropout

    def forward(self, x: Tensor) -> Tensor:
        seen = nn.functional.adaptive_avg_pool2d(x, 8).flatten(2).transpose(1, 2)
        q, k, v = self.project(seen).view(*seen.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        made = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return x + made.transpose(1, 2).flatten(2).mean(1)[:, :, None, None]


class InPlace(nn.Module):
    """Writes over what it has made itself."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(x - 0.1)


class Over(nn.Module):
    """A layer norm over channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "convolution": lambda channels: nn.Conv2d(channels, channels, 3, padding=1),
    "convolution without bias": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, bias=False),
    "by groups": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
    "transposed": lambda channels: nn.ConvTranspose2d(channels, channels, 3, padding=1),
    "batch norm": nn.BatchNorm2d,
    "batch norm of the batch": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "batch norm without weights": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "layer norm": Over,
    "relu": lambda channels: nn.ReLU(),
    "relu in place": lambda channels: InPlace(),
    "gelu": lambda channels: nn.GELU(),
    "dropout": lambda channels: nn.Dropout(0.2),
    "max pool": lambda channels: nn.MaxPool2d(3, stride=1, padding=1),
    "attention": lambda channels: Attention(channels, 0.0),
    "attention with dropout": lambda channels: Attention(channels, 0.2),
}


def training(
    layers: list[str], channels: int, batch: int, side: int, trains: bool, last: bool
) -> Callable[[int], list[Tensor]]:
    """Return a training loop that returns its losses, weights, statistics and gradients."""

    def train(steps: int) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *(LAYERS[name](channels) for name in layers))
        net.append(nn.Conv2d(channels, 4, 1)).train(trains)
        if last:
            net.to(memory_format=torch.channels_last)
        made, losses = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9), []
        for step in range(steps):
            images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8).to(torch.float32) / 256
            made.zero_grad()
            loss = net(images[:-1] if step == 1 else images).square().mean()  # one batch is smaller
            loss.backward()
            made.step()
            losses.append(loss.detach())
        return [*losses, *net.state_dict().values(), *(p.grad for p in net.parameters() if p.grad is not None)]

    return train


ANY = {
    "layers": st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5),
    "channels": st.sampled_from([8, 12, 16]),
    "batch": st.sampled_from([5, 8, 16]),
    "side": st.sampled_from([24, 32, 47]),
    "trains": st.sampled_from([True, True, False]),
    "last": st.sampled_from([False, False, True]),
    "share": st.floats(0.3, 1),
    "kind": st.sampled_from(["ram", "disk"]),
    "mapped": st.sampled_from(["auto", "never"]),
    "plan": st.booleans(),
}
pytestmark = [pytest.mark.unstressed("what is split"), pytest.mark.filterwarnings("ignore")]


# What a call of an op made away had no room beside what that op had made before:
@example(
    layers=["attention with dropout"], channels=12, batch=16, side=24, trains=True, last=True, share=0.3774,
    kind="ram", mapped="auto", plan=False,
)  # fmt: skip
# Something small took the last room for page frames:
@pytest.mark.long
@example(
    layers=["max pool", "convolution"], channels=12, batch=8, side=32, trains=False, last=False, share=0.5796,
    kind="disk", mapped="auto", plan=False,
)  # fmt: skip
@pytest.mark.timeout(600)
@settings(max_examples=4, derandomize=True, suppress_health_check=list(HealthCheck))
@given(**ANY)
def test_some_networks_of_images_train_to_the_same_bits(tmp_path_factory, **network):
    check(tmp_path_factory, **network)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(**ANY)
def test_networks_of_images_train_to_the_same_bits(tmp_path_factory, **network):
    check(tmp_path_factory, **network)


def check(
    tmp_path_factory, layers, channels, batch, side, trains, last, share, kind, mapped, plan
) -> memfit.Session | None:
    """Train plainly, try slices, and train below the largest op's working set; None if that is refused."""
    train = training(layers, channels, batch, side, trains, last)
    budget, tier = budget_below(train, share), tier_of(kind, tmp_path_factory.mktemp)
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        tried = train(2)
    assert same_bits(tried, train(2)), "a trial changed a bit"
    steps = 11 if plan else 4
    try:
        with memfit.session(budget, tier, device="cpu", plan_cache=False, plan=plan, map=mapped) as session:
            made = train(steps)
    except BudgetError:
        assert mapped == "never", "what could be mapped was refused"
        event("refused")
        return None
    stats = session.stats
    assert same_bits(made, train(steps)), "the session changed a bit"
    assert stats.peak_footprint_bytes <= budget and stats.peak_growth_bytes == 0
    event(f"{'mapped' if stats.mapped_ops else 'whole'}, {'split' if stats.split_ops else 'unsplit'}")
    return session

"""Small programs for a simulated GPU: everything they compute, to be compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from running.helpers_training import Failed, Fails
from running.plainly import descend

QUIET = ["train"] * 14
PLANNED_FROM = 4  # optimizer steps, as for the CPU: one to see it, two alike, and the rest of an iteration
EVENTS = ("train", "small batch", "evaluate", "extra op", "keep", "write", "read", "copy", "step twice", "fail", "side")


def mlp(width: int, layers: int) -> nn.Sequential:
    modules = (m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)))
    return nn.Sequential(*modules).cuda()


def events(names: Sequence[str], width: int = 128, batch: int = 256, layers: int = 6) -> list[Tensor]:
    """Train through the events; returns everything a user could see."""
    torch.manual_seed(0)
    net = mlp(width, layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    side = torch.cuda.Stream()
    seen: list[Tensor] = []

    def forward(size: int, fails: bool = False) -> Tensor:
        out = net(torch.randn(size, width).cuda())
        return (Fails.apply(out) if fails else out).pow(2).mean()

    for name in names:
        optimizer.zero_grad()
        if name == "evaluate":
            with torch.no_grad():
                seen.append(forward(2 * batch))
        if name == "write":
            with torch.no_grad():
                net[3].weight.mul_(0.5)
        if name == "read":
            seen.append(net[0].weight.detach().cpu())
        if name == "copy":
            seen.append(net[6].weight.detach().clone())
        loss = forward(batch // 2 if name == "small batch" else batch, name == "fail")
        if name == "extra op":
            loss = loss + net[0].weight.sum()
        try:
            loss.backward()
        except Failed:
            continue
        if name == "keep":
            seen.append(net[0].weight.grad.clone())
        if name == "side":
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                seen.append(net[3].weight.detach() * 2)
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        if name == "step twice":
            optimizer.step()
        seen.append(loss.detach())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return on_host([*seen, *net.parameters(), *moments])


@contextmanager
def after_each_step(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` after each step of any optimizer."""
    hook = register_optimizer_step_post_hook(lambda *_: action())
    try:
        yield
    finally:
        hook.remove()


def stepping(net: nn.Module, batch: Tensor, step_ended: Callable[[], object] = lambda: None) -> Callable[[int], None]:
    """Return a function that trains `net` for a number of steps on a batch that is always the same."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(steps: int) -> None:
        for _ in descend(optimizer, lambda: net(batch).square().mean(), steps):
            step_ended()

    return train


def on_host(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().cpu() for tensor in tensors]


def assert_equal(plain: Sequence[Tensor], governed: Sequence[Tensor]) -> None:
    assert len(plain) == len(governed)
    different = [i for i, (a, b) in enumerate(zip(plain, governed, strict=True)) if not torch.equal(a, b)]
    assert not different, f"of {len(plain)} tensors these differ: {different}"


def _train(net: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor], steps: int = 4,
           accumulate: int = 1) -> list[Tensor]:  # fmt: skip
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            loss = loss_of()
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    moments = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return on_host([*losses, *net.parameters(), *net.buffers(), *moments])


def sgd() -> list[Tensor]:
    net = mlp(256, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3, foreach=False)
    return _train(net, optimizer, lambda: net(torch.randn(512, 256).cuda()).square().mean())


def accumulated() -> list[Tensor]:
    net = mlp(256, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return _train(net, optimizer, lambda: net(torch.randn(512, 256).cuda()).square().mean() / 3, accumulate=3)


def fused() -> list[Tensor]:
    net = mlp(256, 5)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    return _train(net, optimizer, lambda: net(torch.randn(512, 256).cuda()).square().mean())


def classifier() -> list[Tensor]:
    net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 50)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)

    def loss() -> Tensor:
        return F.cross_entropy(net(torch.randn(1024, 128).cuda()), torch.randint(50, (1024,)).cuda())

    return _train(net, optimizer, loss)


def clipped() -> list[Tensor]:
    net = mlp(256, 5)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True)

    def loss() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = net(torch.randn(512, 256).cuda())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        return out.float().square().mean()

    return _train(net, optimizer, loss, accumulate=2)


def tied() -> list[Tensor]:
    middle = (m for _ in range(6) for m in (nn.Linear(256, 256), nn.Tanh()))
    net = nn.Sequential(nn.Embedding(300, 256), *middle, nn.Linear(256, 300, bias=False)).cuda()
    net[-1].weight = net[0].weight
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)

    def loss() -> Tensor:
        tokens = torch.randint(300, (8, 129)).cuda()
        return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _train(net, optimizer, loss)


def checkpointed() -> list[Tensor]:
    net = mlp(256, 6)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def loss() -> Tensor:
        x = torch.randn(512, 256).cuda().requires_grad_()
        return torch.utils.checkpoint.checkpoint_sequential(net, 3, x, use_reentrant=False).square().mean()

    return _train(net, optimizer, loss)


PROGRAMS = (sgd, accumulated, fused, classifier, clipped, tied, checkpointed)

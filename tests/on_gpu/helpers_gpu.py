"""What tests on a GPU share."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import memfit
from running.plainly import descend

MIB = 1 << 20


@functools.cache
def workspace_bytes() -> int:
    """Return what libraries keep for good in a session's arena: a budget has to have room for it besides."""
    with memfit.session(1 << 30, device="cuda", plan=False) as session:
        return session.stats.live_bytes


class Watch:
    """The most device memory in use beyond what was at its start, as the driver tells it."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._free = torch.cuda.mem_get_info()[0]
        self.peak_bytes = 0

    def look(self) -> None:
        """Take one sample."""
        self.peak_bytes = max(self.peak_bytes, self._free - torch.cuda.mem_get_info()[0])


@contextmanager
def watched() -> Iterator[Watch]:
    """Sample the driver's figure about a thousand times a second."""
    watch, stop = Watch(), threading.Event()

    def sample() -> None:
        while not stop.is_set():
            watch.look()
            time.sleep(0.001)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()


class Net(torch.nn.Module):
    """Linear layers with activations that are large beside the weights."""

    def __init__(self, layers: int = 8, width: int = 512) -> None:
        super().__init__()
        blocks = (m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.GELU()))
        self.layers = torch.nn.Sequential(*blocks, torch.nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).pow(2).mean()


def train(steps: int = 14, layers: int = 8, width: int = 512, batch: int = 4096) -> list[torch.Tensor]:
    """Train a `Net`; returns every loss and the final weights, on the host."""
    torch.manual_seed(0)
    net = Net(layers, width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    seen = [loss.detach() for loss in descend(optimizer, lambda: net(torch.randn(batch, width)), steps)]
    return [tensor.cpu() for tensor in (*seen, *(p.detach() for p in net.parameters()))]

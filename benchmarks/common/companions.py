"""Training loops beside which others work: a loader's processes, the threads of distributed training, a recurrent
network's own draws. Each is made from a fixed seed, and returns what it has trained."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, CLASSES = 32, 128, 10

After = Callable[[int], None]


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of random numbers, each from a seed of its own."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draws = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=draws), torch.tensor(index % CLASSES)


class Recurrent(nn.Module):
    """Two layers of an LSTM with a dropout between them, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """Return a score a class of each row, which is taken for every moment of a sequence."""
        moments, _ = self.lstm(rows[:, None].expand(-1, 16, -1))
        scores: Tensor = self.head(moments[:, -1])
        return scores


def perceptron() -> nn.Module:
    """Return a network of linear layers, normalised."""
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(8))
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))


def train(net: nn.Module, steps: int, after: After, workers: int = 0, batch: int = BATCH) -> list[Tensor]:
    """Train a network; return its losses, weights and the optimizer's state. `after` is told of each step."""
    optimizer, device = torch.optim.AdamW(net.parameters(), lr=1e-3), next(net.parameters()).device
    losses = []
    for step, (rows, classes) in enumerate(DataLoader(Rows(steps * batch), batch, num_workers=workers)):
        loss = F.cross_entropy(net(rows.to(device)), classes.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
        after(step)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*losses, *net.state_dict().values(), *moments)]


@contextmanager
def group_of_one() -> Iterator[None]:
    """Be the only process of a distributed training, with the threads that it has."""
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _loader(steps: int, after: After, device: str) -> list[Tensor]:
    return train(perceptron().to(device), steps, after, workers=2)


def _recurrent(steps: int, after: After, device: str) -> list[Tensor]:
    return train(Recurrent().to(device), steps, after)


def _distributed(steps: int, after: After, device: str) -> list[Tensor]:
    with group_of_one():
        return train(nn.parallel.DistributedDataParallel(perceptron().to(device)), steps, after)


LOOPS: Mapping[str, Callable[[int, After, str], list[Tensor]]] = {
    "a loader with two workers": _loader,
    "an LSTM with dropout": _recurrent,
    "DDP, in a group of one": _distributed,
}


def trained(name: str, steps: int, after: After = lambda step: None, device: str = "cpu") -> list[Tensor]:
    """Train by a loop of this name, and return everything."""
    torch.manual_seed(0)
    return LOOPS[name](steps, after, device)

"""A recommender whose table of embeddings is most of its memory: `python recommender.py --help`.

Each sample names some rows of the table, the popular ones often (Zipf's law); what they hold goes through dense layers.
The table has sparse gradients. In a session of memfit it is mapped; without one it is in memory.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import memfit

EXPONENT = 1.05  # of Zipf's law: about that of public logs of clicks


def draws(rows: int, samples: int, fields: int, step: int) -> NDArray[np.int64]:
    """Return the rows that one step's samples name, as (samples, fields)."""
    random = np.random.default_rng(step)
    last = 1.0 - rows ** (1.0 - EXPONENT)
    ranks = (1.0 - random.random((samples, fields)) * last) ** (1.0 / (1.0 - EXPONENT))
    # Popular rows lie anywhere: multiplied by an odd number, modulo a power of two.
    ranked: NDArray[np.int64] = (ranks.astype(np.int64) - 1).clip(0, rows - 1)
    return np.remainder(ranked * 2654435761, rows)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in dict(rows=1 << 18, width=1024, samples=512, fields=4, hidden=1024, steps=10).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--optimizer", choices=["sgd", "sparse_adam"], default="sgd")
    return parser.parse_args()


def mapped(table: Tensor) -> Tensor:
    """Return the table, which stays in the tier if there is one."""
    if memfit.active_session() is not None:
        memfit.map(table)
    return table


def made(rows: int, width: int) -> Tensor:
    """Return a table of small numbers, each row another one, made in parts."""
    table = torch.empty(rows, width)
    for part in mapped(table).split(max(1, (1 << 22) // width)):
        part.copy_(torch.randn(1, width).mul_(0.01).expand_as(part))
    return table


def main() -> None:
    """Train."""
    args = arguments()
    torch.manual_seed(0)
    table = nn.Parameter(made(args.rows, args.width))
    dense = nn.Sequential(nn.Linear(args.fields * args.width, args.hidden), nn.ReLU(),
                          nn.Linear(args.hidden, 256), nn.ReLU(), nn.Linear(256, 1))  # fmt: skip
    optimizers: list[torch.optim.Optimizer]
    if args.optimizer == "sgd":
        optimizers = [torch.optim.SGD([table, *dense.parameters()], lr=0.05)]
    else:
        optimizers = [torch.optim.SparseAdam([table]), torch.optim.SGD(dense.parameters(), lr=0.05)]
        state = optimizers[0].state[table]
        state["step"] = 0
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = mapped(torch.zeros_like(table))
    for step in range(args.steps):
        rows = torch.from_numpy(draws(args.rows, args.samples, args.fields, step))
        label = torch.rand(args.samples, 1).round()
        found = F.embedding(rows, table, sparse=True).flatten(1)
        loss = F.binary_cross_entropy_with_logits(dense(found), label)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main()

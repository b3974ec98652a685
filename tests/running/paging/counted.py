"""A process of its own whose pages are counted while ops run on mapped storages: what was seen, as JSON, by op.

python -m running.paging.counted MECHANISM FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import memfit
from benchmarks.common.resident import Resident
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from running.paging.workloads import LARGE, OTHERS, STREAMS

WORKS = [STREAMS[0], STREAMS[4], *OTHERS[2:5]]
BUDGET = LARGE // 2
PATIENCE_S = 20


def seen_of(begin: Callable[[], Callable[[], object]], budget: int, mechanism: str, folder: str) -> dict[str, int]:
    """Run what `begin` returns until it has been looked at often enough."""
    with memfit.session(budget, TierSpec("disk", folder), plan=False, split="never") as session:
        engine.load().set_mapping("auto", mechanism, 0)
        run = begin()
        with Resident(every_s=0.01).watching() as seen:
            until = time.monotonic() + PATIENCE_S
            while seen.looks < 20 and time.monotonic() < until:
                run()
        stats = session.stats
        return {"looks": seen.looks, "bytes": seen.peak_bytes, "frame_bytes": seen.peak_frame_bytes, "budget": budget,
                "mapped_ops": stats.mapped_ops, "known_frame_bytes": stats.peak_frame_bytes}  # fmt: skip


def op(number: int) -> Callable[[], object]:
    """Return a run of one of the works, beside a storage that has half of the budget until an op needs the room."""
    work, small = WORKS[number], torch.ones(BUDGET // 8)
    operands = work.make()

    def run() -> None:
        work.run(*operands)
        assert small.sum() == len(small)

    return run


def table() -> Callable[[], object]:
    """Return a step that trains some rows of a table that stays mapped."""
    weights = torch.arange(2 * LARGE // 4, dtype=torch.float32).view(-1, 1024).requires_grad_()
    memfit.map(weights)
    optimizer = torch.optim.SGD([weights], lr=0.1)

    def run() -> None:
        rows = torch.randint(len(weights), (64,))
        F.embedding(rows, weights, sparse=True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def main(mechanism: str, folder: str) -> None:
    """Print what was seen of every work, and of the table."""
    torch.set_num_threads(1)
    seen = {
        work.name: seen_of(lambda number=number: op(number), BUDGET, mechanism, folder)
        for number, work in enumerate(WORKS)
    }
    print(json.dumps(seen | {"table": seen_of(table, LARGE // 4, mechanism, folder)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

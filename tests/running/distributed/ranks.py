"""Forked processes that train together over gloo, plainly and within budgets, and what each of them saw."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import memfit
from running.children import Child
from running.plainly import bytes_of

Program = Callable[["Rank"], None]


@dataclass
class Rank:
    """One process of several: what a program asks, and what it notes."""

    number: int
    world: int
    folder: Path
    seen: list[str] = field(default_factory=list)
    pinned_bytes: list[int] = field(default_factory=list)
    session: memfit.Session | None = None

    def note(self, *tensors: Tensor | None) -> None:
        """Note the bits of tensors, and what is pinned."""
        digest = hashlib.sha256()
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            digest.update(b"none" if local is None else bytes_of(local).numpy())
        self.seen.append(digest.hexdigest())
        if self.session is not None:
            self.pinned_bytes.append(self.session.stats.pinned_bytes)


@dataclass(frozen=True)
class Run:
    """What one process saw of one run of a program."""

    seen: list[str]
    pinned_bytes: list[int]
    budget_bytes: int = 0
    planned_iterations: int = 0
    peak_resident_bytes: int = 0
    moved: int = 0
    """Times that something left the arena, or was used where it waits."""


def run(program: Program, rank: Rank, budget: str | None, **options: Any) -> Run:
    """Run a program, in a session if there is a budget."""
    dist.barrier()
    if budget is None:
        program(rank)
        return Run(rank.seen, [])
    with memfit.session(budget, tier="ram", **options) as session:
        rank.session = session
        program(rank)
        stats, planned = session.stats, session.planned_iterations
    moved = stats.evictions + stats.swaps + stats.mapped_storages + stats.split_ops
    return Run(rank.seen, rank.pinned_bytes, stats.budget_bytes, planned, stats.peak_resident_bytes, moved)


def together(job: Callable[[int], Any], folder: Path, world: int = 2) -> list[Any]:
    """Do a job in so many forked processes with a gloo group; return what it returned in each."""

    def begin(number: int) -> str:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=number, world_size=world, timeout=timedelta(seconds=120))
        (folder / f"{number}.pickle").write_bytes(pickle.dumps(job(number)))
        dist.barrier()
        dist.destroy_process_group()
        return "done"

    children = [Child(lambda number=number: begin(number)) for number in range(world)]  # type: ignore[misc]
    for child in children:
        assert child.answer() == "done"
    return [pickle.loads((folder / f"{number}.pickle").read_bytes()) for number in range(world)]


def plainly_and_within(
    program: Program, budgets: Sequence[str], folder: Path, world: int = 2, **options: Any
) -> list[list[Run]]:
    """Run a program in processes of a group, plainly and then within each budget; return each process's runs.

    The bits are compared here.
    """

    def job(number: int) -> list[Run]:
        runs = []
        for budget in (None, *budgets):
            shared = folder / str(budget)
            shared.mkdir(exist_ok=True)
            runs.append(run(program, Rank(number, world, shared), budget, **options))
        return runs

    runs = together(job, folder, world)
    for number, (plain, *limited) in enumerate(runs):
        assert plain.seen
        for budget, each in zip(budgets, limited, strict=True):
            assert each.seen == plain.seen, f"rank {number} saw other bits within {budget}"
            assert each.budget_bytes > 0, f"rank {number} had no limit of {budget}"
            assert each.peak_resident_bytes <= each.budget_bytes
            assert each.moved > 0, f"nothing was moved on rank {number} within {budget}"
    return runs

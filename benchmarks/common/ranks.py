"""Processes of one machine that train together over gloo, plainly or within a budget, and what each of them saw."""

from __future__ import annotations

import hashlib
import os
import pickle
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import memfit
from benchmarks.common.waiting import wait_for_plans


@dataclass
class Rank:
    """One process of several, and what it notes of each step."""

    number: int
    world: int
    folder: Path
    hashes: bool
    """Whether it notes the bits; it notes the time otherwise."""
    seen: list[str] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    """By a clock of the whole machine."""

    def note(self, *tensors: Tensor | None) -> None:
        """Note the end of a step."""
        if not self.hashes:
            self.ends_s.append(time.monotonic())
            return
        digest = hashlib.sha256()
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            if local is not None:
                digest.update(local.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.seen.append(digest.hexdigest())


@dataclass(frozen=True)
class Run:
    """What one process saw of one run."""

    seen: list[str]
    ends_s: list[float]
    stats: dict[str, int]
    planned_iterations: int = 0


def run_ranked(program: Callable[[Rank], None], rank: Rank, budget: str | None, tier: str) -> Run:
    """Run a program plainly, or in a session."""
    dist.barrier()
    if budget is None:
        program(rank)
        return Run(rank.seen, rank.ends_s, {})
    with memfit.session(budget, tier=tier) as session:
        program(rank)
        stats, planned = session.stats, session.planned_iterations
    return Run(rank.seen, rank.ends_s, vars(stats), planned)


def together(job: Callable[[int, Path], Any], world: int) -> list[Any]:
    """Do a job in so many forked processes with a gloo group; return what it returned in each.

    Raises RuntimeError if one fails; what it says goes to stderr.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        children = [_forked(job, number, world, folder) for number in range(world)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise RuntimeError(f"of {world} ranks some failed: {codes}")
        return [pickle.loads((folder / f"{number}.pickle").read_bytes()) for number in range(world)]


def _forked(job: Callable[[int, Path], Any], number: int, world: int, folder: Path) -> int:
    child = os.fork()
    if child != 0:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        wait_for_plans()
        os.environ["MEMFIT_PLAN_CACHE"] = "off"
        store = torch._C._distributed_c10d.FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=number, world_size=world, timeout=timedelta(seconds=300))
        (folder / f"{number}.pickle").write_bytes(pickle.dumps(job(number, folder)))
        dist.barrier()
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def step_ms(run: Run) -> float:
    """Return the median time of a step of the last third."""
    ends = run.ends_s[-len(run.ends_s) // 3 :]
    return 1e3 * statistics.median(end - begin for begin, end in zip(ends, ends[1:], strict=False))


def skew_ms(runs: list[Run]) -> float:
    """Return how far apart the ranks end a step of the last third, in the median."""
    apart: list[float] = [max(ends) - min(ends) for ends in zip(*(run.ends_s for run in runs), strict=True)]
    return 1e3 * statistics.median(apart[-len(apart) // 3 :])

"""The ranks of a distributed run: which of them this process is, as whoever started it has said.

torchrun, Accelerate, DeepSpeed, Ray Train and others set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE for each
process. Where they are not set, a process group that the script has begun tells the rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def world_size() -> int:
    """Return the number of processes of the run; 1 where it is not distributed."""
    told = _told_size()
    return told if told > 1 else _group()[1]


def this_rank() -> int | None:
    """Return this process's rank in a run of several processes; None in any other run."""
    if _told_size() > 1:
        return _number("RANK")
    rank, size = _group()
    return rank if size > 1 else None


def local_rank() -> int | None:
    """Return which of its machine's processes this is; None where nobody has said so."""
    return _number("LOCAL_RANK")


def local_world_size() -> int:
    """Return the number of processes of the run that share this machine."""
    return max(_number("LOCAL_WORLD_SIZE") or 1, 1)


def speaks_for_all() -> bool:
    """Return whether this process says what all ranks would say alike."""
    return not this_rank()


def file_of_rank(path: str, rank: int | None = None) -> str:
    """Return the file of `rank` (None: of this process's) beside `path`, `stats.rank1.json` for `stats.json`.

    Where there is only one process it is `path` itself.
    """
    rank = this_rank() if rank is None else rank
    if rank is None:
        return path
    name = Path(path).name
    endings = Path(name).suffixes
    ending = "".join(endings[-2:] if endings[-1:] == [".gz"] else endings[-1:])
    return f"{path.removesuffix(ending)}.rank{rank}{ending}"


def _told_size() -> int:
    return max(_number("WORLD_SIZE") or 1, 1)


def _group() -> tuple[int, int]:
    """Return this process's rank in the process group that the script has begun, and the group's size."""
    distributed = sys.modules.get("torch.distributed")  # nothing is imported to ask
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None

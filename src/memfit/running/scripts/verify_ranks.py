"""`memfit verify --nproc-per-node N`: torchrun runs the script twice, and each rank is compared with itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from memfit.ranks import file_of_rank
from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.script import OWN_ERROR, Program
from memfit.running.scripts.verify import (
    Run,
    Verdict,
    compared,
    failure,
    run_of,
    two_requests,
)
from memfit.running.scripts.witness import Request

_STDOUT_AND_STDERR = 3


def verify_ranks(
    script: Program | str,
    arguments: Sequence[str],
    budget: str,
    tier: TierSpec,
    processes: int,
    steps: int = 0,
    device: str = "auto",
    deterministic: bool = False,
    map: str = "auto",
    split: str = "auto",
    partition: str = "torch",
) -> list[Verdict]:
    """Compare as `verify` does, with `processes` ranks on this machine; return the verdict on each.

    `device` is read by each rank. Raises as `verify` does; the message names the rank that failed first.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-verify-") as folder:
        plain, limited = two_requests(script, arguments, budget, tier, folder, steps, device, deterministic,
                                      map, split, partition)  # fmt: skip
        shown = _of_rank(plain, 0, processes), _of_rank(limited, 0, processes)
        return compared(plain, limited, lambda request: _run(request, processes), shown)


def _of_rank(request: Request, rank: int, processes: int) -> Request:
    """Return the request as that rank's process understands it."""
    return replace(request, log=file_of_rank(request.log, rank)) if processes > 1 else request


def _run(request: Request, processes: int) -> list[Run]:
    """Return what each rank did."""
    ranks = [_of_rank(request, rank, processes) for rank in range(processes)]
    with tempfile.TemporaryDirectory(prefix="memfit-verify-") as logs:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            f"--redirects={_STDOUT_AND_STDERR}", f"--log-dir={logs}",
            "-m", "memfit.running.scripts.witness", json.dumps(asdict(request)),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise failure(request, _first_failed(ranks, Path(logs)) or done)
    return [run_of(one) for one in ranks]


def _first_failed(ranks: Sequence[Request], logs: Path) -> subprocess.CompletedProcess[str] | None:
    """Return the end of the rank that failed first: the others ended because it did. None if none could tell."""
    ends = [(json.loads(Path(one.failure_file).read_text()), rank) for rank, one in enumerate(ranks)
            if Path(one.failure_file).exists()]  # fmt: skip
    if not ends:
        return None
    (_, code), rank = min(ends)
    said = "".join(path.read_text() for path in logs.glob(f"*/attempt_0/{rank}/stderr.log"))
    return subprocess.CompletedProcess([], code, stderr=said if OWN_ERROR.search(said) else f"rank {rank}:\n{said}")

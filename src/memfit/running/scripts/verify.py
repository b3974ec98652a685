"""`memfit verify`: the proof that a budget changes nothing.

The script runs twice, in two processes: plainly, and under the budget. Both hash every loss, gradient, weight
and optimizer state, and what forward passes without gradients return; the hashes must be equal, one by one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memfit.errors import BudgetError, InputError, InternalError, MemfitError, TierError, UsageError
from memfit.progress import about, clock, shown
from memfit.running.engine.devices import parse_device
from memfit.running.engine.tiers import TierSpec
from memfit.running.machine.compute import speeds_to
from memfit.running.scripts.launch import no_limit_error
from memfit.running.scripts.script import OWN_ERROR, Program, as_program, check_program, failure_said
from memfit.running.scripts.witness import Request
from memfit.running.session.settings import Partition

_LATER = "not looked for, since another rank differed in an earlier step"


@dataclass(frozen=True)
class Run:
    """One of the two runs: its log, its duration, and its peak memory as the operating system saw it."""

    rows: list[dict[str, Any]]
    seconds: float
    peak_rss_bytes: int
    stats: dict[str, int] | None
    no_limit: str  # why a share never became a limit; empty if it did


@dataclass(frozen=True)
class Difference:
    """The first hash that is not the same in both runs, and the first op whose output differs ("" if none)."""

    step: int
    what: str
    op: str

    def __str__(self) -> str:
        op = self.op or "no op's output differed when the step was run again: the script does not repeat itself"
        return f"step {self.step}: {self.what} differs; first differing op: {op}"


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison. `compared` counts hashes, by kind; `skipped` what had none, by the reason."""

    steps: int
    compared: dict[str, int]
    skipped: dict[str, int]
    difference: Difference | None
    plain: Run
    limited: Run

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without the hashes themselves."""
        runs = {name: {k: v for k, v in asdict(run).items() if k != "rows"}
                for name, run in (("plain", self.plain), ("limited", self.limited))}  # fmt: skip
        difference = asdict(self.difference) if self.difference else None
        return {"equal": difference is None, "steps": self.steps, "compared": self.compared,
                "difference": difference, **runs}  # fmt: skip


def verify(
    script: Program | str,
    arguments: Sequence[str],
    budget: str,
    tier: TierSpec,
    steps: int = 0,
    device: str = "cpu",
    deterministic: bool = False,
    map: str = "auto",
    split: str = "auto",
    partition: str = "torch",
) -> Verdict:
    """Compare a plain run of `script` with one under `budget` of `device`, for `steps` steps (0: all).

    A step is an optimizer's or, in a script that does not train, a forward pass.

    `deterministic` asks torch for algorithms that repeat themselves, in both runs. `map` and `split` are as of
    `memfit.session`, and so is `partition`, which is for both runs.

    Raises InputError if the script fails by itself, BudgetError or TierError if the budget run ends so, NoLimitError
    if a share never took effect, and UsageError in a process of torchrun's.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-verify-") as folder:
        requests = two_requests(script, arguments, budget, tier, folder, steps, device, deterministic, map, split,
                                partition)  # fmt: skip
        [verdict] = compared(*requests, _run, requests)
    return verdict


def two_requests(
    script: Program | str, arguments: Sequence[str], budget: str, tier: TierSpec, folder: str, steps: int, device: str,
    deterministic: bool, map: str, split: str, partition: str,
) -> tuple[Request, Request]:  # fmt: skip
    """Return the plain run and the one under the budget, with logs in `folder`; arguments as of `verify`.

    Raises InputError if there is no such script, and UsageError in a process of torchrun's.
    """
    program = as_program(script)
    check_program(program)
    _refuse_torchrun()
    plain = Request(
        program.name, list(arguments), f"{folder}/plain", program.is_module,
        steps=steps, device=device, deterministic=deterministic,
        speeds=speeds_to(tier, parse_device(device)).as_tuple() if partition == Partition.RECOMPUTE else None,
    )  # fmt: skip
    return plain, replace(plain, log=f"{folder}/limited", budget=budget, tier=asdict(tier), map=map, split=split)


def compared(
    plain: Request, limited: Request, run: Callable[[Request], list[Run]], counted: tuple[Request, Request]
) -> list[Verdict]:
    """Return the verdict on each process of the two runs, which `run` carries out; the steps of `counted` are shown.

    Raises NoLimitError if a share never took effect in one of them.
    """
    with shown(Steps(counted).line):
        runs = list(zip(run(plain), run(limited), strict=True))
    for _, of_limited in runs:
        if of_limited.no_limit:
            raise no_limit_error(str(limited.budget), of_limited.no_limit, "nothing was verified")
    unequal = [_first_difference(a.rows, b.rows) for a, b in runs]
    differences: list[Difference | None] = [None] * len(runs)
    if first := min((found[0] for found in unequal if found is not None), default=0):
        again = [run(replace(request, steps=first, op_step=first)) for request in (plain, plain, limited)]
        for at, found in enumerate(unequal):
            if found is not None:
                op = _first_op(*(each[at].rows for each in again)) if found[0] == first else _LATER
                differences[at] = Difference(*found, op)
    return [Verdict(_steps(a.rows), _counts(a.rows), _skipped(a.rows), difference, a, b)
            for (a, b), difference in zip(runs, differences, strict=True)]  # fmt: skip


class Steps:
    """The steps that both runs have made, of those that they will make."""

    def __init__(self, requests: tuple[Request, Request]) -> None:
        self._requests = requests
        self._began = time.monotonic()

    def line(self) -> str:
        """Return the line for a person. If all steps are asked for, the plain run tells how many there are."""
        plain, limited = (_made(request) for request in self._requests)
        asked = self._requests[0].steps
        if not os.path.exists(self._requests[1].log):
            return self._line("plain run", plain, asked, plain, 2 * asked)
        total = asked or plain
        return self._line("budget run", limited, total, total + limited, 2 * total)

    def _line(self, run: str, made: int, of: int, all_made: int, all_of: int) -> str:
        text = f"verifying | {run}, step {made}{f' of {of}' if of else ''}"
        if not (all_made and all_of):
            return text
        elapsed = time.monotonic() - self._began
        return f"{text} | {clock(elapsed)}, {about(elapsed * (all_of - all_made) / all_made)}"


def _made(request: Request) -> int:
    """Return how many steps a run has made."""
    try:
        return os.path.getsize(request.steps_file)
    except OSError:
        return 0


def _refuse_torchrun() -> None:
    """Raise UsageError where each process is one of a group: both runs would meet in one store, and wait for ever."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "memfit verify cannot run under torchrun",
            why="it runs the script twice, and the second run's process group would wait in the store of the first's",
            remedy="memfit verify starts torchrun itself: memfit verify --nproc-per-node 2 SCRIPT --budget B",
        )


def _run(request: Request) -> list[Run]:
    command = [sys.executable, "-m", "memfit.running.scripts.witness", json.dumps(asdict(request))]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise failure(request, done)
    return [run_of(request)]


def run_of(request: Request) -> Run:
    """Return what a process that has carried out `request` did. Raises InputError if there is nothing to compare."""
    *rows, end = [json.loads(line) for line in Path(request.log).read_text().splitlines()]
    if not any("hash" in row for row in rows):
        seen = "no backward pass, no optimizer step and no module's forward pass under torch.no_grad() was seen"
        if rows:
            seen = f"no tensor that was seen has bytes: {_listed(_skipped(rows))}"
        raise InputError(
            f"the script '{request.program}' computes nothing that could be compared",
            why=seen,
            remedy="pass a script that trains with a torch optimizer, calls backward(), or calls a module under "
            "torch.no_grad(); the passes of models that torch.compile makes are not seen",
        )
    return Run(rows, end["seconds"], end["peak_rss_bytes"], end["stats"], end["no_limit"])


def failure(request: Request, done: subprocess.CompletedProcess[str]) -> MemfitError:
    """Return the error for a run that has failed."""
    if done.returncode == InternalError.exit_code and (own := failure_said(done.stderr)) is not None:
        return own
    how = "plainly" if request.budget is None else f"under a budget of {request.budget}"
    message = OWN_ERROR.sub(lambda found: found[1] or "", done.stderr.strip(), count=1)
    if done.returncode == BudgetError.exit_code and request.budget is not None:
        return BudgetError(message)
    if OWN_ERROR.search(done.stderr):
        return TierError(message)
    remedy = f"run it plainly until it works: python {request.program}"
    if request.budget is not None:
        remedy = "the plain run succeeded: the budget or memfit is to blame, unless the script fails now and then"
    return InputError(f"the script '{request.program}' failed when run {how} (exit code {done.returncode})",
                      why=message, remedy=remedy)  # fmt: skip


def _first_difference(plain: list[dict[str, Any]], limited: list[dict[str, Any]]) -> tuple[int, str] | None:
    for a, b in zip(plain, limited, strict=False):
        if a != b:
            same_thing = (a["step"], a["kind"], a["name"]) == (b["step"], b["kind"], b["name"])
            return a["step"], f"{a['kind']} {a['name']}" + ("" if same_thing else f" (against {b['kind']} {b['name']})")
    if len(plain) != len(limited):
        longer = plain if len(plain) > len(limited) else limited
        row = longer[min(len(plain), len(limited))]
        return row["step"], f"{row['kind']} {row['name']} (seen in one run only)"
    return None


def _first_op(plain: list[dict[str, Any]], plain_again: list[dict[str, Any]], limited: list[dict[str, Any]]) -> str:
    """Name the first op whose output differs, those that differ between two plain runs as well last of all."""
    logs = (plain, plain_again, limited)
    plain, plain_again, limited = ([row for row in rows if row["kind"] == "op"] for rows in logs)
    varies = {a["name"] for a, b in zip(plain, plain_again, strict=False) if a != b}
    steady = [[row for row in rows if row["name"] not in varies] for rows in (plain, limited)]
    if unequal := _first_difference(*steady):
        return unequal[1].removeprefix("op ")
    if unequal := _first_difference(plain, limited):
        return unequal[1].removeprefix("op ") + ", in two plain runs as well: the script does not repeat itself"
    return ""


def _steps(rows: list[dict[str, Any]]) -> int:
    return max(int(row["step"]) for row in rows)


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many hashes there are of each kind."""
    return dict(Counter(row["kind"] for row in rows if "hash" in row))


def _skipped(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many tensors have no hash, by their kind and the reason."""
    return dict(Counter(f"{row['kind']}, {row['skipped']}" for row in rows if "skipped" in row))


def _listed(skipped: dict[str, int]) -> str:
    return "; ".join(f"{count} x {why}" for why, count in skipped.items())

"""This version against another one: the examples' step times, run in turn, and the instructions of a tiny op.

The other version is a checkout in which `make demo` has been run: its own environment and its own worker are used.
"""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks.common.examples import EXAMPLES, check_output, median_step, run_worker, sized
from benchmarks.common.paths import ROOT
from benchmarks.common.result import Result, Row, Table, grouped
from benchmarks.cpu.overhead import ATTACHED

TINY = """
import sys, torch
from memfit.running.session import Session
torch.set_num_threads(1)
count, a = int(sys.argv[1]), torch.ones(4)
def loop():
    for _ in range(count): a + a
with Session(1 << 30, "ram", device="cpu", record=False): loop()
"""
# Ops: what begins and ends a run cancels out, but for so much that 10,000 are too few.
FEW, MANY = 1_000, 101_000


def instructions(python: str, count: int) -> int:
    """Return the instructions that valgrind counts for a run with so many tiny additions."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", python, "-c", TINY, str(count)]
    env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind failed: {done.stderr[-2000:]}")
    return int(found[1])


def per_op(python: str) -> float:
    """Return the instructions of one tiny addition in a session, the plain op included."""
    instructions(python, 1)  # builds the engine, if nobody has
    return (instructions(python, MANY) - instructions(python, FEW)) / (MANY - FEW)


def compare(example: str, budget: str | int, steps: int, repeats: int, other: tuple[Path, str]) -> Row:
    """Return the step times of both versions: pairs of seconds, of the other and of this, and their ratios."""
    arguments, versions = sized(example, steps), [other, (ROOT, sys.executable)]
    pairs = []
    for _ in range(repeats):
        runs = {python: run_worker(example, arguments, budget, root=root, python=python, threads=1, tier="ram")
                for root, python in versions}  # fmt: skip
        pairs.append((median_step(runs[other[1]]), median_step(runs[sys.executable])))
        versions.reverse()  # each begins in turn
    ratios = [after / before for before, after in pairs]
    return {"example": example, "budget": budget, "seconds": pairs, "ratios": ratios}


def table(figures: dict[str, Any]) -> Table:
    """Return the ratio of the step times for each example and budget, with its range."""
    budgets = list(dict.fromkeys(row["budget"] for row in figures["cells"]))
    lines = []
    for example, rows in grouped(figures["cells"]).items():
        cells = {r["budget"]: (statistics.median(r["ratios"]), min(r["ratios"]), max(r["ratios"])) for r in rows}
        found = [cells.get(budget) for budget in budgets]
        lines.append([example, *("" if c is None else f"x{c[0]:.2f} ({c[1]:.2f} to {c[2]:.2f})" for c in found)])
    columns = ["example", *("attached" if isinstance(budget, int) else budget for budget in budgets)]
    return Table("Step times, this version / the other, tier ram", columns, lines)


def instructions_table(figures: dict[str, Any]) -> Table:
    """Return what callgrind counted for a tiny op in a session of either version."""
    before, after = figures["counts"]
    row = ["instructions of a tiny add", f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.3f}"]
    return Table("Callgrind", ["", "before", "after", "ratio"], [row])


def run(
    other: Annotated[Path, {"help": "a checkout of the other version, after `make demo`"}],
    *,
    budgets: Sequence[str] = ("60%", "40%"),
    examples: Sequence[str] = tuple(EXAMPLES),
    steps: int = 16,
    repeats: int = 3,
    only: Annotated[str, {"choices": ["instructions", "steps"]}] = "",
) -> Iterator[Result]:
    """Count a tiny op's instructions in both versions, and time the examples' steps."""
    folder = other.resolve()
    python = str(folder / ".venv" / "bin" / "python")
    commit = check_output(["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]).strip()
    if only != "steps":
        counts = {"other": commit, "counts": [per_op(python), per_op(sys.executable)]}
        yield Result("instructions", counts, [instructions_table(counts)])
    if only != "instructions":
        tried: list[str | int] = [ATTACHED, *budgets]
        cells = itertools.product(examples, tried)
        rows = [compare(example, budget, steps, repeats, (folder, python)) for example, budget in cells]
        figures = {"other": commit, "cells": rows}
        yield Result("versions", figures, [table(figures)])

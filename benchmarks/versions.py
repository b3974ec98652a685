"""This version against another one: the examples' step times, run in turn, and the instructions of a tiny op.

The other version is a checkout in which `make demo` has been run: its own environment and its own worker are used.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import EXAMPLES, ROOT, run_worker, save, show, step_seconds

ATTACHED = 4 << 30  # bytes: nothing has to move
TINY = """
import sys, torch
from memfit.running.session import Session
torch.set_num_threads(1)
count, a = int(sys.argv[1]), torch.ones(4)
def loop():
    for _ in range(count): a + a
with Session(1 << 30, "ram", device="cpu", record=False): loop()
"""
FEW, MANY = 1_000, 11_000  # ops: what begins and ends a run cancels out


def instructions(python: str, count: int) -> int:
    """Return the instructions that valgrind counts for a run with so many tiny additions."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "tiny.py")
        script.write_text(TINY)
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
        done = subprocess.run([*valgrind, python, str(script), str(count)], capture_output=True, text=True, env=env)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind failed: {done.stderr[-2000:]}")
    return int(found[1])


def per_op(python: str) -> float:
    """Return the instructions of one tiny addition in a session, the plain op included."""
    instructions(python, 1)  # builds the engine, if nobody has
    return (instructions(python, MANY) - instructions(python, FEW)) / (MANY - FEW)


def median_step(example: str, budget: str | int, steps: int, root: Path, python: str) -> float:
    """Return the median of the last half of the steps, in seconds."""
    arguments = [*EXAMPLES[example], "--steps", str(steps)]
    result = run_worker(example, arguments, budget, root=root, python=python, threads=1, tier="ram")
    seconds = step_seconds(result, 0)
    return statistics.median(seconds[len(seconds) // 2 :])


def compare(example: str, budget: str | int, steps: int, repeats: int, other: tuple[Path, str]) -> dict[str, Any]:
    """Return the step times of both versions, in pairs."""
    here = (ROOT, sys.executable)
    pairs = []
    for repeat in range(repeats):
        order = (other, here) if repeat % 2 == 0 else (here, other)
        seconds = {python: median_step(example, budget, steps, root, python) for root, python in order}
        pairs.append((seconds[other[1]], seconds[here[1]]))
    ratios = [after / before for before, after in pairs]
    return {"example": example, "budget": budget, "seconds": pairs, "ratios": ratios}


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    before, after = (statistics.median(pair[i] for pair in row["seconds"]) for i in (0, 1))
    budget = "attached" if row["budget"] == ATTACHED else row["budget"]
    ratios = row["ratios"]
    return [row["example"], budget, f"{1e3 * before:.1f}", f"{1e3 * after:.1f}", f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f} .. {max(ratios):.3f}"]  # fmt: skip


def count_instructions(commit: str, python: str) -> None:
    """Count a tiny op's instructions in both versions."""
    counts = per_op(python), per_op(sys.executable)
    show("Instructions of a tiny add in a session", ["", "other", "this", "ratio"],
         [["callgrind", f"{counts[0]:.0f}", f"{counts[1]:.0f}", f"{counts[1] / counts[0]:.3f}"]])  # fmt: skip
    save("instructions", {"other": commit, "counts": counts})


def time_steps(commit: str, other: tuple[Path, str], args: argparse.Namespace) -> None:
    """Time the examples' steps in both versions."""
    cells = [(example, budget) for example in args.examples for budget in (ATTACHED, *args.budgets)]
    rows = [compare(example, budget, args.steps, args.repeats, other) for example, budget in cells]
    columns = ["example", "budget", "other ms", "this ms", "this / other (median)", "range"]
    show("Step times, tier ram, in turn", columns, [line(row) for row in rows])
    save("versions", {"other": commit, "cells": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the other version, after `make demo`")
    parser.add_argument("--budgets", nargs="*", default=["60%", "40%"])
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["instructions", "steps"])
    args = parser.parse_args()
    other = (args.other.resolve(), str(args.other.resolve() / ".venv" / "bin" / "python"))
    commit = subprocess.run(["git", "-C", args.other, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if args.only != "steps":
        count_instructions(commit.stdout.strip(), other[1])
    if args.only != "instructions":
        time_steps(commit.stdout.strip(), other, args)


if __name__ == "__main__":
    main()

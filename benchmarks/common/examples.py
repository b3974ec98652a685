"""The examples as workloads: their sizes, running them in processes of their own, and recording them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from benchmarks.common.paths import ROOT

Sizes = Mapping[str, Sequence[str]]
Traces = Annotated[
    Sequence[Path] | None,
    {"metavar": "FILE", "help": "traces to use instead of recording the examples (none: `--traces` alone)"},
]
# What `worker.py` tells of a run, sizes in bytes: `steps`, `error`, `peak_rss_bytes`; of a session also its `stats`,
# what was foreseen of a `plan` that swaps, and the needs of the recorded `trace`. A step has the moment `at` which it
# ended (seconds of some clock), whether the worker `stopped` then for a while, and the statistics until then.
Run = dict[str, Any]

MEMFIT = (sys.executable, "-m", "memfit")
# Small enough for a table in minutes, large enough that tensors and not constants decide.
EXAMPLES: Sizes = {
    "vgg": ["--width", "16", "--batch", "64", "--eval-every", "0"],
    "resnet": ["--width", "16", "--batch", "32"],
    "decoder": ["--layers", "4", "--width", "128", "--batch", "8"],
    "lstm": ["--width", "128", "--batch", "32"],
    "unet": ["--width", "16", "--batch", "8"],
    "gan": ["--width", "32", "--batch", "64"],
}
# Ops long enough to time, and to hide copies under.
TIMED: Sizes = {
    "vgg": ["--width", "32", "--batch", "64", "--eval-every", "0"],
    "resnet": ["--width", "32", "--batch", "64"],
    "decoder": ["--layers", "6", "--width", "256", "--batch", "8"],
    "unet": ["--width", "32", "--batch", "8"],
}
# Tensors weigh more than the interpreter and its libraries.
LARGE: Sizes = {
    "decoder": ["--layers", "12", "--width", "384", "--batch", "16"],
    "resnet": ["--batch", "2048"],
    "vgg": ["--depth", "16", "--batch", "1280", "--eval-every", "0"],
}


def script_of(example: str) -> str:
    """Return the path of an example's script."""
    return str(ROOT / "examples" / f"{example}.py")


def sized(example: str, steps: int, sizes: Sizes = EXAMPLES) -> list[str]:
    """Return an example's arguments for so many steps."""
    return [*sizes[example], "--steps", str(steps)]


class Worker(NamedTuple):
    """One example (or script) in a process of its own.

    `budget` "plain" is without memfit. `root` and `python` are another checkout's, where its version is to run.
    """

    example: str
    arguments: Sequence[str]
    budget: str | int | None
    options: Mapping[str, object] = MappingProxyType({})
    root: Path = ROOT
    python: str = sys.executable

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return what is to be run, and its environment."""
        script = self.example if self.example.endswith(".py") else script_of(self.example)
        request = {"script": script, "arguments": list(self.arguments), "budget": self.budget, **self.options}
        folders = [str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])]  # where the worker's package is, too
        command = [self.python, str(self.root / "benchmarks" / "worker.py"), json.dumps(request)]
        return command, os.environ | {"PYTHONPATH": os.pathsep.join(folders)}


def run_worker(
    example: str,
    arguments: Sequence[str],
    budget: str | int | None,
    *,
    root: Path = ROOT,
    python: str = sys.executable,
    within_s: float | None = None,
    **options: object,
) -> Run:
    """Run a `Worker` of these; raises RuntimeError if it fails, TimeoutExpired if it takes longer than `within_s`."""
    printed = check_output(*Worker(example, arguments, budget, options, root, python).command(), within_s)
    found: Run = json.loads(printed.splitlines()[-1])
    return found


def check_output(
    command: Sequence[str], environment: Mapping[str, str] | None = None, within_s: float | None = None
) -> str:
    """Return what a command prints; raises RuntimeError with the end of its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=within_s)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def median_step(run: Run, skip: int | None = None) -> float:
    """Return the median time of the steps after the first `skip`, or of the last half of them, in seconds."""
    seconds: list[float] = [after["at"] - before["at"] for before, after in pairwise(run["steps"])]
    return statistics.median(seconds[len(seconds) // 2 if skip is None else skip :])


def done_between(first: Mapping[str, Any], last: Mapping[str, Any], *names: str) -> int:
    """Return what the session did from the end of one step to that of another: the sum of these statistics."""
    return sum(int(last[name] - first[name]) for name in names)


@contextmanager
def example_traces(given: Sequence[Path] | None) -> Iterator[Sequence[Path]]:
    """Yield the files `given`, or otherwise one iteration of each example, recorded for as long as this lasts."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{example}.json.gz") for example in EXAMPLES]
        for path, (example, arguments) in zip(paths, EXAMPLES.items(), strict=True):
            check_output([*MEMFIT, "trace", script_of(example), "-o", str(path), "--", *arguments])
        yield paths

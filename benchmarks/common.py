"""What the benchmarks share: the examples at benchmark sizes, running and recording them, the data, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = Path(os.environ.get("MEMFIT_DATA", ROOT.parent / "shared" / "data"))

# Small enough for a table in minutes, large enough that tensors and not constants decide.
EXAMPLES: dict[str, list[str]] = {
    "vgg": ["--width", "16", "--batch", "64", "--eval-every", "0"],
    "resnet": ["--width", "16", "--batch", "32"],
    "decoder": ["--layers", "4", "--width", "128", "--batch", "8"],
    "lstm": ["--width", "128", "--batch", "32"],
    "unet": ["--width", "16", "--batch", "8"],
    "gan": ["--width", "32", "--batch", "64"],
}


def run_worker(
    example: str, arguments: Sequence[str], budget: str | int, *, root: Path = ROOT, python: str = sys.executable,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run one example (or script) in a process of its own; `budget` "plain" is without memfit. Raises on failure.

    `root` and `python` are another checkout's, where its version is to run.
    """
    script = example if example.endswith(".py") else str(ROOT / "examples" / f"{example}.py")
    request = {"script": script, "arguments": list(arguments), "budget": budget}
    command = [python, str(root / "benchmarks" / "worker.py"), json.dumps(request | options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{example} at {budget}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def lifetime_files() -> list[Path]:
    """Return the tables of lifetimes in the data folder; none if it is absent."""
    return sorted([*(DATA / "packing").glob("*.csv"), *(DATA / "snapshots").glob("*.csv")])


def add_traces_option(parser: argparse.ArgumentParser) -> None:
    """Add `--traces`, to be passed to `example_traces`."""
    text = "traces to use instead of recording the examples (none: `--traces` alone)"
    parser.add_argument("--traces", nargs="*", type=Path, metavar="FILE", help=text)


@contextmanager
def example_traces(given: list[Path] | None) -> Iterator[list[Path]]:
    """Yield the files `given`, or else one iteration of each example, recorded for as long as this lasts."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [_record(example, Path(folder)) for example in EXAMPLES]


def _record(example: str, folder: Path) -> Path:
    path = folder / f"{example}.json.gz"
    script = str(ROOT / "examples" / f"{example}.py")
    command = [sys.executable, "-m", "memfit", "trace", script, "-o", str(path), "--", *EXAMPLES[example]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{example} was not recorded: {done.stderr[-2000:]}")
    return path


def step_seconds(result: dict[str, Any], skip: int) -> list[float]:
    """Return the time of each step after the first `skip`."""
    at = [step["at"] for step in result["steps"]]
    return [b - a for a, b in zip(at[skip:], at[skip + 1 :], strict=False)]


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=200).print(table)


def save(name: str, data: Any) -> None:
    """Write a benchmark's figures beside the others."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"written to {path.relative_to(ROOT)}")

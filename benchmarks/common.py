"""What the benchmarks share: the examples at benchmark sizes, running one in a process, tables and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

# Small enough for a table in minutes, large enough that tensors and not constants decide.
EXAMPLES: dict[str, list[str]] = {
    "vgg": ["--width", "16", "--batch", "64", "--eval-every", "0"],
    "resnet": ["--width", "16", "--batch", "32"],
    "decoder": ["--layers", "4", "--width", "128", "--batch", "8"],
    "lstm": ["--width", "128", "--batch", "32"],
    "unet": ["--width", "16", "--batch", "8"],
    "gan": ["--width", "32", "--batch", "64"],
}


def run_worker(example: str, arguments: Sequence[str], budget: str | int, **options: Any) -> dict[str, Any]:
    """Run one example (or script) in a process of its own; `budget` "plain" is without memfit. Raises on failure."""
    script = example if example.endswith(".py") else str(ROOT / "examples" / f"{example}.py")
    request = {"script": script, "arguments": list(arguments), "budget": budget}
    command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), json.dumps(request | options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{example} at {budget}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


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

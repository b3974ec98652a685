"""What the offline commands cost as traces grow: processor seconds and peak memory, from 4,000 to 200,000 ops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from benchmarks.common.paths import ROOT
from benchmarks.common.result import Result, Row, Table
from benchmarks.offline._scaling_case import CASES, MACHINE, SHARE
from benchmarks.offline.swapping import decoder
from memfit.files import save_trace

SIZES = (4_000, 10_000, 14_000, 50_000, 100_000, 200_000)
NAMES = ("load", *CASES)
_OPS_OF_A_LAYER = 48
# Ops, and the most that planning them may take: seconds of the processor, and bytes where there is a limit.
BARS = {4_000: (2, None), 14_000: (5, None), 100_000: (60, 2_000_000_000)}


def measure(ops: int, names: Sequence[str], folder: Path) -> list[Row]:
    """Return the figures of each case on a decoder of about `ops` ops, each from a process of its own."""
    trace, plan = folder / f"{ops}.json.gz", folder / f"{ops}.plan.json.gz"
    save_trace(decoder(layers=ops // _OPS_OF_A_LAYER), trace)
    rows = []
    for name in names:
        command = [sys.executable, "-m", "benchmarks.offline._scaling_case", name, str(trace), str(plan)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        rows.append({"case": name, "size": ops, **json.loads(done.stdout)})
    return rows


def with_growth(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the power of the ops that the seconds grew by since the size before: 1 is in proportion."""
    found: list[Row] = []
    for row in rows:
        before = next((r for r in reversed(found) if r["case"] == row["case"]), None)
        power = before and log(row["cpu_seconds"] / before["cpu_seconds"]) / log(row["size"] / before["size"])
        found.append({**row, "growth": power})
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return all figures, and planning beside its bars."""
    lines = [_line(row) for row in sorted(rows, key=lambda row: (NAMES.index(row["case"]), row["size"]))]
    heads = ["case", "ops", "processor", "per op", "peak memory", "grows by the power"]
    return [
        Table("Decoders of many layers", heads, lines),
        Table("Planning", ["ops", "took", "bar"], _beside_bars(rows)),
    ]


def _line(row: Row) -> list[str]:
    seconds, growth = row["cpu_seconds"], row["growth"]
    took = [f"{seconds:.2f} s", f"{1e6 * seconds / row['size']:.0f} us", f"{row['peak_bytes'] / 1e6:.0f} MB"]
    return [row["case"], f"{row['size']:,}", *took, "" if growth is None else f"{growth:.2f}"]


def _beside_bars(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for row in rows:
        if row["case"] != "plan" or row["size"] not in BARS:
            continue
        seconds, peak_bytes = BARS[row["size"]]
        lines.append([f"{row['size']:,}", f"{row['cpu_seconds']:.1f} s", f"{seconds} s"])
        if peak_bytes:
            lines.append([f"{row['size']:,}", f"{row['peak_bytes'] / 1e9:.2f} GB", f"{peak_bytes / 1e9:.0f} GB"])
    return lines


def run(
    *,
    sizes: Sequence[int] = SIZES,
    cases: Annotated[Sequence[str], {"choices": NAMES}] = NAMES,
) -> Iterator[Result]:
    """Measure each case at each size, in ops; `simulate` and `validate` take the plan of `plan`, which runs before."""
    with TemporaryDirectory() as folder:
        rows = with_growth([row for ops in sizes for row in measure(ops, cases, Path(folder))])
    figures: dict[str, Any] = {"machine": MACHINE.name, "share": SHARE, "rows": rows}
    yield Result("scaling", figures, tables(rows))

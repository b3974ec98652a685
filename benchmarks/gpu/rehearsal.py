"""The quarter of an hour, rehearsed on a simulated H200: whether its cells come to their end, and how long they take.

The same command runs as on a GPU, but for `doctor` and the tests. Ops, copies, plans and the host take modelled times,
no byte is computed, and kernels that Triton compiles do not run. A cell takes what the virtual clock says, and a while
to start.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from benchmarks.common.result import Result, Row, Table
from benchmarks.gpu.bench import read
from benchmarks.gpu.virtual import on_simulator

_START_S = 3.0  # of a process that has imported nothing, on the H200's host
_PARTS = ("sweep", "peers", "first")


def rows_of(folder: Path) -> list[Row]:
    """Return what became of each cell, by part, and the seconds that it would take."""
    rows = []
    for part in _PARTS:
        for key, cell in read(folder / f"{part}.json").get("cells", {}).items():
            result = cell.get("result") or {}
            row = {"part": part, "cell": key, "status": cell["status"], "error": cell.get("error", "")[:300],
                   "seconds": _START_S + result.get("simulated_s", 0.0)}  # fmt: skip
            rows.append(row | {name: result[name] for name in ("settled", "planned_steps") if name in result})
    return rows


def table(figures: Row) -> Table:
    """Return a row for each cell, with the sum of the seconds up to its end."""
    rows, total = [], 0.0
    for row in figures["rows"]:
        total += row["seconds"]
        why = row["error"] or ("" if row.get("settled", True) else "no plan for some steps")
        rows.append([row["part"], row["cell"], row["status"], f"{row['seconds']:.0f}", f"{total:.0f}", why[:80]])
    return Table("The quarter of an hour, on the simulated H200", ["part", "cell", "status", "s", "in all", ""], rows)


def run(*, quick: Annotated[bool, {"help": "tiny models: whether it runs"}] = False) -> Iterator[Result]:
    """Run `gpu_first` on the simulated H200."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["-m", "benchmarks", "gpu_first", "--start", "spawn", "--out", folder, "--limit", "3400"]
        arguments += ["--quick"] if quick else []
        on_simulator(arguments, check=False)
        figures: Row = {"rows": rows_of(Path(folder))}
    yield Result("rehearsal", figures, [table(figures)])

"""Whether `memfit info`'s minimum is enough: kinds of programs traced, then trained under it and some percent more.

Each program of `kinds/` is what a real one of its kind does, made small. It runs under the minimum in bytes, so from
the first op on, initialisation included. Where batches vary in size, later ones may be larger than the recorded one:
those are told apart, since the minimum does not cover them.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.common.examples import MEMFIT, check_output
from benchmarks.common.paths import ROOT
from benchmarks.common.result import Result, Row, Table

KINDS = ROOT / "benchmarks" / "kinds"
VARY = {"lora", "graphs", "private", "recommender", "packed_lstm"}  # batches of another size each time
VARIANTS: dict[str, tuple[str, list[str]]] = {"hf_gpt2_checkpointing": ("hf_gpt2", ["--checkpoint"])}


def programs() -> dict[str, tuple[str, list[str]]]:
    """Return each kind's script and arguments."""
    return {path.stem: (path.stem, []) for path in sorted(KINDS.glob("*.py"))} | VARIANTS


def measure(kind: str, script: str, arguments: Sequence[str], percent: float) -> Row:
    """Trace the program, and run it under the minimum that `memfit info` says and `percent` more; sizes in bytes."""
    path = str(KINDS / f"{script}.py")
    with tempfile.TemporaryDirectory() as folder:
        trace, stats = f"{folder}/trace.json", Path(folder, "stats.json")
        check_output([*MEMFIT, "trace", path, "-o", trace, "--", *arguments])
        info = json.loads(check_output([*MEMFIT, "info", trace, "--json"]))
        minimum = info["minimum"]
        budget = int(minimum["budget_bytes"] * (1 + percent / 100))
        command = [*MEMFIT, "run", "--budget", str(budget), "--tier", "ram", "--stats", str(stats), path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        footprint = json.loads(stats.read_text())["peak_footprint_bytes"] if stats.exists() else None
    before = minimum["before"] if minimum["budget_bytes"] > minimum["iteration_bytes"] else None
    return {
        "kind": kind,
        "varies": script in VARY,
        "peak_bytes": info["lower_bound_bytes"],
        "minimum_bytes": minimum["budget_bytes"],
        "iteration_bytes": minimum["iteration_bytes"],
        "set_by": (before or minimum["op"])["name"],
        "set_before_iteration": before is not None,
        "budget_bytes": budget,
        "peak_footprint_bytes": footprint,
        "trained": done.returncode == 0,
        "refused": "" if done.returncode == 0 else why(done.stderr),
    }


def why(said: str) -> str:
    """Return memfit's error without folders, which differ by machine."""
    at = said.rfind("memfit: error:")
    return re.sub(r"/\S*/(kinds|site-packages)/", "", said[at:] if at >= 0 else said[-1500:]).strip()


def table(rows: Sequence[Row], percent: float) -> Table:
    """Return one row a kind."""
    columns = ["kind", "peak MB", "minimum MB", "iteration's MB", "set by", "batches", "trains"]
    trained = sum(row["trained"] for row in rows)
    return Table(
        f"Minimum + {percent:g} %: {trained} of {len(rows)} kinds train", columns, [_line(row) for row in rows]
    )


def _line(row: Row) -> list[str]:
    sizes = [f"{size / 1e6:.2f}" for size in (row["peak_bytes"], row["minimum_bytes"], row["iteration_bytes"])]
    where = "before" if row["set_before_iteration"] else "in it"
    return [row["kind"], *sizes, f"{row['set_by']} ({where})", "vary" if row["varies"] else "alike",
            "yes" if row["trained"] else "refused"]  # fmt: skip


def run(
    *,
    kinds: Sequence[str] = tuple(programs()),
    percent: Annotated[float, {"help": "how much more than the minimum"}] = 5.0,
) -> Iterator[Result]:
    """Measure the kinds; the file is written only if that is all of them."""
    rows = [measure(kind, *programs()[kind], percent) for kind in kinds]
    figures = {"percent": percent, "trained": sum(row["trained"] for row in rows), "kinds": rows}
    notes = [f"{row['kind']}: {row['refused']}" for row in rows if not row["trained"]]
    name = "info_minimum" if tuple(kinds) == tuple(programs()) else ""
    yield Result(name, figures, [table(rows, percent)], notes)

"""Whether `memfit info`'s minimum is enough: kinds of programs traced, then trained under it and some percent more.

Each program of `kinds/` is what a real one of its kind does, made small. It runs under the minimum in bytes, so from
the first op on, initialisation included. Where batches vary in size, later ones may be larger than the recorded one:
those are told apart, since the minimum does not cover them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, save, show

KINDS = ROOT / "benchmarks" / "kinds"
VARY = {"lora", "graphs", "private", "recommender", "packed_lstm"}  # batches of another size each time
VARIANTS: dict[str, tuple[str, list[str]]] = {"hf_gpt2_checkpointing": ("hf_gpt2", ["--checkpoint"])}


def programs() -> dict[str, tuple[str, list[str]]]:
    """Return each kind's script and arguments."""
    return {path.stem: (path.stem, []) for path in sorted(KINDS.glob("*.py"))} | VARIANTS


def measure(kind: str, script: str, arguments: list[str], percent: float) -> dict[str, Any]:
    """Trace the program, and run it under the minimum and `percent` more."""
    path = str(KINDS / f"{script}.py")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        stats = Path(folder) / "stats.json"
        check(memfit("trace", path, "-o", str(trace), "--", *arguments))
        info = json.loads(check(memfit("info", str(trace), "--json")))
        minimum = info["minimum"]
        budget = int(minimum["budget_bytes"] * (1 + percent / 100))
        done = memfit("run", "--budget", str(budget), "--tier", "ram", "--stats", str(stats), path, *arguments)
        grown = json.loads(stats.read_text())["peak_footprint_bytes"] if stats.exists() else None
    before = minimum["before"] if minimum["budget_bytes"] > minimum["iteration_bytes"] else None
    op = before or minimum["op"]
    return {"kind": kind, "varies": script in VARY, "peak_bytes": info["lower_bound_bytes"],
            "minimum_bytes": minimum["budget_bytes"], "iteration_bytes": minimum["iteration_bytes"],
            "set_by": op["name"], "set_before_iteration": before is not None, "budget_bytes": budget,
            "peak_footprint_bytes": grown, "trained": done.returncode == 0,
            "refused": "" if done.returncode == 0 else why(done.stderr)}  # fmt: skip


def why(said: str) -> str:
    """Return memfit's error without folders, which differ by machine."""
    at = said.rfind("memfit: error:")
    return re.sub(r"/\S*/(kinds|site-packages)/", "", said[at:] if at >= 0 else said[-1500:]).strip()


def memfit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of memfit's."""
    return subprocess.run([sys.executable, "-m", "memfit", *arguments], capture_output=True, text=True)


def check(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the command printed. Raises if it failed."""
    if done.returncode != 0:
        raise RuntimeError(f"{done.args}: {done.stderr[-2000:]}")
    return done.stdout


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    where = "before" if row["set_before_iteration"] else "in it"
    return [row["kind"], f"{row['peak_bytes'] / 1e6:.2f}", f"{row['minimum_bytes'] / 1e6:.2f}",
            f"{row['iteration_bytes'] / 1e6:.2f}", f"{row['set_by']} ({where})", "vary" if row["varies"] else "alike",
            "yes" if row["trained"] else "refused"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(programs()))
    parser.add_argument("--percent", type=float, default=5.0, help="how much more than the minimum")
    args = parser.parse_args()
    rows = [measure(kind, *programs()[kind], args.percent) for kind in args.kinds]
    columns = ["kind", "peak MB", "minimum MB", "iteration's MB", "set by", "batches", "trains"]
    trained = sum(row["trained"] for row in rows)
    show(f"Minimum + {args.percent:g} %: {trained} of {len(rows)} kinds train", columns, [line(row) for row in rows])
    for row in rows:
        if not row["trained"]:
            print(f"{row['kind']}: {row['refused']}")
    if args.kinds == list(programs()):
        save("info_minimum", {"percent": args.percent, "trained": trained, "kinds": rows})


if __name__ == "__main__":
    main()

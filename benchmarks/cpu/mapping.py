"""Below one op's working set: examples on mapped storages, their bits, their bytes and their time."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.examples import EXAMPLES, MEMFIT, median_step, run_worker, script_of, sized
from benchmarks.common.result import Result, Row, Table, mb

VOCABULARY = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
embedding = torch.nn.Embedding(32768, 32)
head = torch.nn.Linear(32, 32768)
optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=1e-3)
for step in range({steps}):
    words = torch.randint(32768, (256,))
    loss = F.cross_entropy(head(embedding(words)), words.roll(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LARGE_VOCABULARY = "large vocabulary"


def program(example: str, steps: int, folder: Path) -> tuple[str, list[str]]:
    """Return a script and its arguments for so many steps."""
    if example != LARGE_VOCABULARY:
        return script_of(example), sized(example, steps)
    script = folder / "vocabulary.py"
    script.write_text(VOCABULARY.format(steps=steps))
    return str(script), []


def is_equal(script: str, arguments: Sequence[str], budget: int) -> dict[str, object]:
    """Return what `memfit verify` finds."""
    command = [*MEMFIT, "verify", script, "--budget", str(budget), "--tier", "disk", "--json", "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout.startswith("{") else {"equal": False, "error": done.stderr}


def measure(example: str, share: float, steps: int, folder: Path) -> Row:
    """Return one example at a share of its largest working set; sizes in bytes, times in seconds."""
    script, arguments = program(example, steps, folder)
    facts = run_worker(script, arguments, "100%", tier="ram")["trace"]
    budget = int(facts["largest_working_set"] * share)
    plain = run_worker(script, arguments, "plain")
    mapped = run_worker(script, arguments, budget, plan=False, map="auto")
    stats, verdict = mapped.get("stats", {}), is_equal(script, arguments, budget)
    return {
        "example": example, "share": share, "peak": facts["peak"], "working_set": facts["largest_working_set"],
        "budget": budget, "equal": verdict["equal"], "error": mapped["error"] or verdict.get("error", ""),
        "plain_s": median_step(plain), "mapped_s": None if mapped["error"] else median_step(mapped),
        "footprint": stats.get("peak_footprint_bytes"), "frames": stats.get("peak_frame_bytes"),
        "mapped_in": stats.get("mapped_bytes_in", 0) // steps, "mapped_out": stats.get("mapped_bytes_out", 0) // steps,
        "faults": stats.get("faults", 0) // steps,
    }  # fmt: skip


def table(rows: list[Row]) -> Table:
    """Return one row an example and budget."""
    lines = [
        [row["example"], mb(row["working_set"]), mb(row["budget"]), f"{row['budget'] / row['peak']:.0%}",
         "equal" if row["equal"] else "NOT EQUAL", mb(row["footprint"]), mb(row["mapped_in"]), mb(row["mapped_out"]),
         f"{row['mapped_s'] / row['plain_s']:.2f}x"]
        for row in rows if row["mapped_s"]
    ]  # fmt: skip
    columns = ["example", "largest working set", "budget", "/ peak", "bits", "most in memory", "mapped in / step",
               "mapped out / step", "step / plain"]  # fmt: skip
    return Table("Mapped storages", columns, lines)


def run(*, examples: Sequence[str] = (*EXAMPLES, LARGE_VOCABULARY), steps: int = 4,
        shares: Sequence[float] = (0.5, 0.25)) -> Iterator[Result]:  # fmt: skip
    """Try each example at each share of its largest working set."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(example, share, steps, Path(folder)) for example in examples for share in shares]
    yield Result("mapping", rows, [table(rows)])

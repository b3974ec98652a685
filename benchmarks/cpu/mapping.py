"""Below one op's working set: examples on mapped storages, with slices and without, their bits, bytes and time."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.examples import EXAMPLES, MEMFIT, Run, median_step, run_worker, script_of, sized
from benchmarks.common.paths import RESULTS
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
GPT2_SMALL = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
embedding, places = nn.Embedding(50257, 768), nn.Embedding(64, 768)
layers = [nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(12)]
model = nn.ModuleList([embedding, places, *layers, nn.LayerNorm(768)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
later = torch.triu(torch.full((64, 64), float("-inf")), 1)
for step in range({steps}):
    words = torch.randint(50257, (2, 64))
    hidden = embedding(words) + places.weight
    for layer in layers:
        hidden = layer(hidden, src_mask=later)
    scores = F.linear(model[-1](hidden), embedding.weight)
    loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PROGRAMS = {"large vocabulary": VOCABULARY, "GPT-2 small": GPT2_SMALL}
"""Beside the examples: `{steps}` is how many steps they take."""


def program(example: str, steps: int, folder: Path) -> tuple[str, list[str]]:
    """Return a script and its arguments for so many steps."""
    if example not in PROGRAMS:
        return script_of(example), sized(example, steps)
    script = folder / "program.py"
    script.write_text(PROGRAMS[example].replace("{steps}", str(steps)))
    return str(script), []


def is_equal(script: str, arguments: Sequence[str], budget: int, within_s: float) -> dict[str, Any]:
    """Return what `memfit verify` finds."""
    command = [*MEMFIT, "verify", script, "--budget", str(budget), "--tier", "disk", "--json", "--", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return {"equal": False, "error": f"it took more than {within_s:.0f} s to verify"}
    return json.loads(done.stdout) if done.stdout.startswith("{") else {"equal": False, "error": done.stderr}


def measure(example: str, share: float, steps: int, folder: Path, within_s: float) -> Row:
    """Return one example at a share of its largest working set; sizes in bytes, times in seconds."""
    script, arguments = program(example, steps, folder)
    facts = run_worker(script, arguments, "100%", tier="ram")["trace"]
    budget = int(facts["largest_working_set"] * share)
    plain = run_worker(script, arguments, "plain")

    def limited(split: str) -> Run | None:
        try:
            return run_worker(script, arguments, budget, plan=False, map="auto", split=split, counts_pages=True,
                              within_s=within_s)  # fmt: skip
        except subprocess.TimeoutExpired:
            return None

    mapped, both = limited("never"), limited("auto")
    verdict = is_equal(script, arguments, budget, 2 * within_s)
    runs = [run for run in (mapped, both) if run is not None]
    stats = (mapped or {}).get("stats", {})
    return {
        "example": example, "share": share, "peak": facts["peak"], "working_set": facts["largest_working_set"],
        "budget": budget, "equal": verdict["equal"],
        "errors": [error for error in (*(run["error"] for run in runs), verdict.get("error")) if error],
        "plain_s": median_step(plain), "mapped_s": seconds_of(mapped), "both_s": seconds_of(both), "within_s": within_s,
        "footprint": max((run["stats"]["peak_footprint_bytes"] for run in runs), default=None),
        "counted": max((run["peak_page_bytes"] for run in runs), default=None),
        "mapped_in": stats.get("mapped_bytes_in", 0) // steps, "mapped_out": stats.get("mapped_bytes_out", 0) // steps,
        "faults": stats.get("faults", 0) // steps, "frames": stats.get("peak_frame_bytes"),
    }  # fmt: skip


def seconds_of(run: Run | None) -> float | None:
    """Return a step's seconds; None where there is none."""
    return None if run is None or run["error"] else median_step(run)


def ratio(seconds: float | None, row: Row) -> str:
    """Return how much longer than a plain one a step takes."""
    return f"over {row['within_s']:.0f} s in all" if seconds is None else f"{seconds / row['plain_s']:.2f}x"


def table(rows: list[Row]) -> Table:
    """Return one row an example and budget."""
    lines = [
        [row["example"], mb(row["working_set"]), mb(row["budget"]), f"{row['budget'] / row['peak']:.0%}",
         "equal" if row["equal"] else "NOT EQUAL", mb(row["footprint"]), mb(row["counted"]),
         *((mb(row["mapped_in"]), mb(row["mapped_out"])) if row["mapped_s"] else ("", "")),
         ratio(row["mapped_s"], row), ratio(row["both_s"], row)]
        for row in rows if row.get("footprint") and not row["errors"]
    ]  # fmt: skip
    columns = ["example", "largest working set", "budget", "/ peak", "bits", "most in memory", "by the system",
               "mapped in / step", "mapped out / step", "step / plain", "with slices"]  # fmt: skip
    return Table("Mapped storages", columns, lines)


def run(*, examples: Sequence[str] = (*EXAMPLES, *PROGRAMS), steps: int = 4, shares: Sequence[float] = (0.5, 0.25),
        within_s: float = 600, resume: bool = False) -> Iterator[Result]:  # fmt: skip
    """Try each example at each share of its largest working set; `resume`: but those that the JSON file has already."""
    path = RESULTS / "mapping.json"
    rows: list[Row] = json.loads(path.read_text()) if resume and path.exists() else []
    known = {(row["example"], row["share"]) for row in rows}
    for example, share in itertools.product(examples, shares):
        if (example, share) in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(example, share, steps, Path(folder), within_s))
        yield Result("mapping", rows, [table(rows)])

"""What an H200 took, beside what the simulated one takes with the engine of then: is its virtual clock to be believed?

The H200 ran commit 0cd05d36 (`benchmarks/results/h200/sweep.json`): Llama, a batch of 6, in 60 and 80 % of its peak.
The same cell runs on the simulated H200 with the package of that commit, which `--package` names:
`git worktree add OLD 0cd05d36; pip install --no-deps --target PACKAGE OLD`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import RESULTS
from benchmarks.common.result import Result, Row, Table
from benchmarks.gpu.virtual import outcome_of

SHARES = (60, 80)
_STEPS = 12
_LIMIT_S = 900


def cell(package: Path, budget_bytes: int | None, steps: int) -> Row:
    """Return the steps' milliseconds on the simulated H200, with the memfit of that folder."""
    request = {"budget_bytes": budget_bytes, "steps": steps}
    return outcome_of("benchmarks.gpu.calibration_cell", request, _LIMIT_S, str(package))


def figures_of(run: Row) -> dict[str, float]:
    """Return the first step, the median of steps 3 and 4, which have no plan, and of the last ones by a plan; ms.

    `run` has the steps' times, and how many plans had come into force at the end of each, and what had left so far.
    """
    times, plans, out = run["step_ms"], run["plans"], run["bytes_out"]
    found = {"first step": times[0], "step without a plan": statistics.median(times[2:4])}
    planned = [ms for ms, before in zip(times[1:], plans, strict=False) if before][2:]
    if planned:
        step_ms = statistics.median(planned)
        found |= {"step by the first plan": step_ms, "that, for a GB that leaves": step_ms * 1e9 / (out[-1] - out[-2])}
    return found


def measured() -> dict[str, dict[str, float]]:
    """Return the H200's figures, by share and name; its plain step is that of share 100."""
    cells = json.loads((RESULTS / "h200" / "sweep.json").read_text())["cells"]
    found = {"100": {"plain step": cells["llama/plain"]["result"]["median_ms"]["step"]}}
    for share in SHARES:
        result = cells[f"llama/{share}"]["result"]
        run: Row = {name: [row[name] for row in result["rows"]] for name in ("plans", "bytes_out")}
        found[str(share)] = figures_of(run | {"step_ms": [each["step"] for each in result["times_ms"]]})
    return found


def table(figures: Row) -> Table:
    """Return a row for each figure that both have."""
    rows = [
        [f"{share} %", name, f"{ms:.4g}", f"{simulated:.4g}", f"{simulated / ms - 1:+.1%}"]
        for share, names in figures["measured"].items()
        for name, ms in names.items()
        if (simulated := figures["simulated"][share].get(name)) is not None
    ]
    return Table("Llama on an H200, commit 0cd05d36", ["budget", "what", "H200, ms", "simulated, ms", "off"], rows)


def run(*, package: Annotated[Path, {"help": "a folder with memfit as of commit 0cd05d36"}]) -> Iterator[Result]:
    """Run the plain step, and each share of the simulated peak."""
    plain = cell(package, None, 4)
    simulated: dict[str, Row] = {"100": {"plain step": statistics.median(plain["step_ms"][1:])}}
    runs = {"100": plain}
    for share in SHARES:
        runs[str(share)] = cell(package, plain["peak_bytes"] * share // 100, _STEPS)
        simulated[str(share)] = figures_of(runs[str(share)])
    figures: Row = {"measured": measured(), "simulated": simulated, "runs": runs}
    yield Result("calibration", figures, [table(figures)])

"""Steps of more than one kind on a simulated H200: which of them wait, and for how long.

Two shapes in turn, an epoch's last batch of another size, an evaluation between the steps. A step stalls if it takes
more than one plain step of its kind longer than that. Times are modelled (docs/cuda-simulator.md).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.common.result import Result, Row, Table
from benchmarks.gpu.simulated import MODELS, cell

_EPOCH = 10  # steps, of which the last differs, or is followed by an evaluation
_LAST = 4  # steps of a kind that a median is taken of
_CASES = {
    "two shapes in turn": ("whole", "half") * (_EPOCH // 2),
    "a last batch of another size": ("whole",) * (_EPOCH - 1) + ("half",),
    "an evaluation": ("whole",) * _EPOCH + ("evaluate",),
}


def measured(epoch: Sequence[str], plain: Row, limited: Row, kind: str) -> Row:
    """Return the figures of one kind of steps; steps are counted from 1."""
    plain_ms = float(statistics.median(ms for _, ms in _of_kind(epoch, plain, kind)))
    (_, first_ms), *others = _of_kind(epoch, limited, kind)
    stalls = [step for step, ms in others if ms > 2 * plain_ms]
    last_ms = statistics.median(ms for _, ms in others[-_LAST:])
    return {"kind": kind, "plain_ms": plain_ms, "first_ms": first_ms, "stalls": stalls,
            "worst_ms": max(ms for _, ms in others), "last_ms": last_ms}  # fmt: skip


def _of_kind(epoch: Sequence[str], found: Row, kind: str) -> list[tuple[int, float]]:
    """Return the number and milliseconds of each step of a kind, in a run of whole epochs."""
    numbered = enumerate(found["periods_ms"])
    return [(number + 1, ms) for number, ms in numbered if epoch[number % len(epoch)] == kind]


def table(figures: Row) -> Table:
    """Return one row a model, case and kind of steps."""
    columns = ["model", "steps", "of these", "plain ms", "first", "stalls after it", "at steps", "longest", "last"]
    return Table("Steps of more than one kind, on the simulated H200", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    plain, stalls = row["plain_ms"], row["stalls"]
    first, worst, last = (f"{row[name] / plain:.2f}x" for name in ("first_ms", "worst_ms", "last_ms"))
    steps = ", ".join(map(str, stalls)) or "-"
    return [row["model"], row["case"], row["kind"], f"{plain:.1f}", first, str(len(stalls)), steps, worst, last]


def run(
    *,
    models: Annotated[Sequence[str], {"choices": list(MODELS)}] = ("llama", "resnet50"),
    share: Annotated[int, {"help": "of the peak, which is the budget, in %%"}] = 60,
    epochs: int = 5,
    quick: Annotated[bool, {"help": "tiny models"}] = False,
) -> Iterator[Result]:
    """Train each model in each case, plainly for an epoch and within a share of its peak."""
    rows: list[Row] = []
    for model in models:
        for case, epoch in _CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "trace.json.gz"
                plain = cell(model, None, epoch * 2, trace, quick)
                budget = plain["peak_bytes"] * share // 100
                limited = cell(model, budget, epoch * epochs, trace, quick)
            known = {"model": model, "share": share, "case": case, "budget_bytes": budget, "stats": limited["stats"],
                     "periods_ms": limited["periods_ms"], "unplanned": limited["unplanned"]}  # fmt: skip
            rows += [known | measured(epoch, plain, limited, kind) for kind in dict.fromkeys(epoch)]
        yield Result("simulated_kinds", {"epochs": epochs, "rows": rows}, [table({"rows": rows})])

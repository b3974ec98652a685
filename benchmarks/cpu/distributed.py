"""Ranks of each kind of distributed training under a budget: bits, pinned bytes, and time and skew against plain ones.

The ranks are processes of this machine with a thread each, over gloo. Bits (of losses, gradients and parameters) are
compared in short runs, times in longer ones, in which plans are waited for: plain, within each budget, and plain again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import distributed
from benchmarks.common.ranks import Rank, Run, run_ranked, skew_ms, step_ms, together
from benchmarks.common.result import Result, Row, Table, mb

KINDS = (
    "ddp", "ddp_views", "ddp_no_sync", "ddp_static_graph", "ddp_hook", "ddp_join", "ddp_sparse", "fsdp1", "fsdp2",
    "zero", "zero_alone", "tensor_parallel", "pipeline", "by_hand", "coalesced", "every_collective", "checkpointed",
)  # fmt: skip
_UNTIMED = {"checkpointed", "ddp_join"}  # their steps are not all alike, or not as many on each rank


def measure(kind: str, budgets: Sequence[str], ranks: int, steps: int, batch: int, tier: str) -> Iterator[Row]:
    """Yield a row for each budget."""
    distributed.BATCH = batch
    short = _runs(kind, [None, *budgets], ranks, 16, tier, hashes=True)
    timed = [] if kind in _UNTIMED else _runs(kind, [None, *budgets, None], ranks, steps, tier, hashes=False)
    for i, budget in enumerate(budgets, start=1):
        row = {"kind": kind, "ranks": ranks, "budget": budget}
        row |= {"equal": all(one[i].seen == one[0].seen for one in short), **_bytes(short, i)}
        yield row | (_times(timed, i) if timed else {})


def _runs(kind: str, budgets: Sequence[str | None], ranks: int, steps: int, tier: str, hashes: bool) -> list[list[Run]]:
    distributed.STEPS = steps
    program = getattr(distributed, kind)

    def job(number: int, folder: Path) -> list[Run]:
        runs = []
        for i, budget in enumerate(budgets):
            own = folder / str(i)
            own.mkdir(exist_ok=True)
            runs.append(run_ranked(program, Rank(number, ranks, own, hashes), budget, tier))
        return runs

    return together(job, ranks)


def _bytes(runs: list[list[Run]], i: int) -> Row:
    stats = [one[i].stats for one in runs]
    return {
        "budget_bytes": max(each["budget_bytes"] for each in stats),
        "pinned_bytes": max(each["pinned_bytes"] for each in stats),
        "in_collectives_bytes": max(each["collective_bytes"] for each in stats),
        "within_budget": all(each["peak_footprint_bytes"] <= each["budget_bytes"] for each in stats),
    }


def _times(runs: list[list[Run]], i: int) -> Row:
    plain = [max(step_ms(one[j]) for one in runs) for j in (0, -1)]
    took, plain_ms = max(step_ms(one[i]) for one in runs), sum(plain) / 2
    return {
        "plain_ms": plain_ms,
        "step_ms": took,
        "time_ratio": took / plain_ms,
        "plain_skew_ms": sum(skew_ms([one[j] for one in runs]) for j in (0, -1)) / 2,
        "skew_ms": skew_ms([one[i] for one in runs]),
        "planned": min(one[i].planned_iterations for one in runs),
    }


def table(rows: Sequence[Row]) -> Table:
    """Return one row a kind and budget."""
    columns = ["kind", "budget", "bytes", "bits", "pinned", "step", "/ plain", "skew", "plain's", "by plan"]
    return Table(f"Distributed training, {rows[0]['ranks']} ranks", columns, [_line(row) for row in rows])


def _line(row: Row) -> list[Any]:
    bits = "equal" if row["equal"] else "DIFFERENT"
    head = [row["kind"], row["budget"], mb(row["budget_bytes"]), bits, mb(row["pinned_bytes"])]
    if "step_ms" not in row:
        return [*head, "", "", "", "", ""]
    times = [f"{row['step_ms']:.1f} ms", f"{row['time_ratio']:.2f}x", f"{row['skew_ms']:.2f} ms"]
    return [*head, *times, f"{row['plain_skew_ms']:.2f} ms", row["planned"]]


def run(
    *, kinds: Sequence[str] = KINDS, budgets: Sequence[str] = ("60%", "40%"), ranks: int = 2, steps: int = 36,
    batch: int = 2048, tier: str = "ram",
) -> Iterator[Result]:  # fmt: skip
    """Measure each kind; fails if a bit differs."""
    rows = [row for kind in kinds for row in measure(kind, budgets, ranks, steps, batch, tier)]
    yield Result("distributed", rows, [table(rows)], exit_code=int(not all(row["equal"] for row in rows)))

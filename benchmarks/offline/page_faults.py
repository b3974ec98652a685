"""The fault simulator beside runs: bytes in and out of one op on a window, as foreseen and as a pager moved them.

A run is one of `MEASURED`, which a pager by userfaultfd gave on two cores, or a row of a JSON file (`--runs FILE`): the
op's name, the MiB of its operands, which of them it writes to, its random rows and their bytes, the MiB of the window,
the KiB of a chunk, the rule by which chunks leave, and the MiB that came in and left, with a window full of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.paths import RESULTS
from benchmarks.common.result import Result, Row, Table
from memfit.ir import Trace
from memfit.machine import Faults, profile
from memfit.planning.paging import Leaves, Pager
from memfit.planning.paging.layout import window_layout
from tests.trace_builder import TraceBuilder

MIB = 1 << 20
_CALLS = 16
"""So many calls fill the window as it is in the long run."""


@dataclass(frozen=True)
class Run:
    """One op in a window, as measured; `sweeps` is that of the op if it is no stream, fitted to the bytes."""

    op: str
    operands_mib: tuple[int, ...]
    writes: tuple[int, ...]
    window_mib: int
    chunk_kib: int
    into_mib: float
    out_mib: float | None
    draws: int = 0
    row_bytes: int = 0
    sweeps: int = 1
    leaves: str = "OLDEST"
    settles: bool = False
    """Whether all that it wrote to has left when it ends, as in the engine."""
    by: str = "prototype"


MEASURED = (
    Run("aten::add.out", (128, 128, 128), (2,), 128, 1024, 384, 127),
    Run("aten::_softmax.out", (128, 128), (1,), 128, 1024, 256, 142),
    Run("aten::_fused_adam_", (64, 64, 64, 64), (0, 2, 3), 128, 1024, 256, 189),
    Run("aten::native_layer_norm", (128,), (), 48, 1024, 128, None),
    Run("aten::native_group_norm", (128,), (), 48, 1024, 129, None),
    Run("aten::max_pool2d", (128,), (), 48, 1024, 129, None),
    Run("aten::_log_softmax", (127,), (), 48, 1024, 130, None),
    Run("aten::cat", (64, 64), (), 48, 1024, 128, None),
    Run("aten::cross_entropy_loss", (128,), (), 48, 1024, 128, None),
    Run("aten::embedding", (512,), (), 128, 1024, 1550, None, 2048, 4096),
    Run("aten::embedding", (512,), (), 128, 64, 97.2, None, 2048, 4096),
    Run("aten::embedding", (512,), (), 128, 16, 24.1, None, 2048, 4096),
    Run("aten::index_add_", (512,), (0,), 128, 64, 109.4, 109.4, 2048, 4096),
    Run("aten::mm", (2, 256, 2), (2,), 224, 1024, 1892, None, sweeps=40, leaves="NEWEST"),
    Run("aten::mm", (2, 256, 2), (2,), 128, 1024, 9076, None, sweeps=65, leaves="NEWEST"),
    Run("aten::sum", (128,), (), 48, 1024, 2048, None, sweeps=16),
    Run("aten::native_batch_norm", (128,), (), 48, 1024, 8321, None, sweeps=65),
)


def runs_of(path: Path) -> list[Run]:
    """Return the runs of a JSON file."""
    return [Run(**row) for row in json.loads(path.read_text())]


def foreseen(run: Run) -> tuple[float, float]:
    """Return the MiB that the simulator has come in and leave."""
    trace = _trace(run)
    chunk_bytes = run.chunk_kib << 10
    faults = Faults(0.0, chunk_bytes, chunk_bytes, sweeps=run.sweeps)
    inside = range(len(run.operands_mib))
    pager = Pager(trace, faults, window_layout(trace, faults, inside, (), _CALLS))
    dismissed = [
        (call * len(trace.ops), *pager.range_of(call, storage)) for call in range(_CALLS) for storage in inside
    ]
    found = pager.run(
        profile("nvme"), run.window_mib * MIB, Leaves[run.leaves], dismissed=dismissed if run.settles else ()
    )
    return float(found.bytes_in.sum()) / MIB, float(found.bytes_out.sum()) / MIB


def _trace(run: Run) -> Trace:
    builder = TraceBuilder(alignment=512)
    operands = [builder.before(size * MIB) for size in run.operands_mib]
    written = [operands[index] for index in run.writes]
    more = [builder.before(8 * run.draws), builder.before(run.draws * run.row_bytes)] if run.draws else []
    reads = [*operands, *(more if written else more[:1])]
    builder.op(run.op, reads=reads, writes=written or more[1:])
    return builder.build()


def figures(run: Run) -> Row:
    """Return a run with what was foreseen."""
    into, out = foreseen(run)
    return {**vars(run), "foreseen_into_mib": into, "foreseen_out_mib": out}


def table(rows: list[Row]) -> Table:
    """Return one row a run."""
    lines = []
    for row in rows:
        error = f"{row['foreseen_into_mib'] / row['into_mib'] - 1:+.1%}" if row["into_mib"] else "-"
        out = "" if row["out_mib"] is None else f"{row['out_mib']:.0f}"
        fitted = f"{row['sweeps']} sweeps, fitted" if row["sweeps"] > 1 else "rows" if row["draws"] else "stream"
        lines.append([row["op"].removeprefix("aten::"), row["by"], fitted, f"{sum(row['operands_mib'])} MiB",
                      f"{row['window_mib']} MiB", f"{row['chunk_kib']} KiB", f"{row['into_mib']:.0f}",
                      f"{row['foreseen_into_mib']:.0f} ({error})", out,
                      f"{row['foreseen_out_mib']:.0f}" if out else ""])  # fmt: skip
    columns = ["op", "pager", "class", "operands", "window", "chunk", "MiB in", "foreseen", "MiB out", "foreseen out"]
    return Table("Bytes of one op in a window", columns, lines)


def run(*, runs: Path | None = None) -> Iterator[Result]:
    """Compare the simulator's bytes with those of runs."""
    engine = RESULTS / "paged_runs.json"
    known = list(MEASURED) if runs is None else runs_of(runs)
    if runs is None and engine.exists():
        known += runs_of(engine)
    rows = [figures(each) for each in known]
    yield Result("page_faults", rows, [table(rows)])

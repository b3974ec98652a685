"""What the engine moves for one op on mapped storages: the runs that `page_faults` compares with the simulator.

Each op runs some times in a session in which whatever may be is mapped. Its operands are in the tier before it, and
after it; so its bytes are those of one call in a window of its own. A table stays mapped from one call to the next.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import memfit
from benchmarks.common.result import Result, Row, Table
from memfit.running.session import Session

MIB = 1 << 20
_CALLS = 3
_TABLE_MIB = 512
_PAGE = 4096
_SHARE_OF_LIMIT, _SHARE_FOR_ROWS, _CHUNKS = 16, 4, 32
"""Of the budget, what page frames take, for one pass and for rows; and how many chunks they have."""


@dataclass(frozen=True)
class Case:
    """One op: `make` gives its operands, whose sizes are `operands_mib`, and `call` runs it.

    What it returns has room in the arena. Of a table so many random rows are used, each of so many bytes.
    """

    op: str
    operands_mib: tuple[int, ...]
    make: Callable[[], tuple[Tensor, ...]]
    call: Callable[..., object]
    writes: tuple[int, ...] = ()
    draws: int = 0
    row_bytes: int = 0


def _ones(mib: int, width: int = 1024) -> Tensor:
    return torch.ones(mib * MIB // 4).view(-1, width)


def _rows(table: Tensor, count: int, seed: int) -> Tensor:
    return torch.randint(len(table), (count,), generator=torch.Generator().manual_seed(seed))


def _adam(*lists: Tensor) -> None:
    param, grad, mean, square = ([each] for each in lists)
    torch._fused_adam_(param, grad, mean, square, [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.99,
                       weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip


def _looked_up(table: Tensor, rows: Tensor) -> Tensor:
    return F.embedding(rows, table)


def _selected(table: Tensor, rows: Tensor) -> Tensor:
    return table.index_select(0, rows)


def _added(table: Tensor, rows: Tensor) -> None:
    values = torch.ones(len(rows), table.shape[1])
    table.add_(torch.sparse_coo_tensor(rows[None], values, tuple(table.shape), check_invariants=False))


def _table(width: int) -> tuple[Tensor, ...]:
    table = _ones(_TABLE_MIB, width)
    memfit.map(table)
    return (table,)


STREAMS = (
    Case("aten::add", (64, 64), lambda: (_ones(64), _ones(64)), torch.add),
    Case("aten::mul_", (128,), lambda: (_ones(128),), lambda a: a.mul_(1.5), writes=(0,)),
    Case("aten::gelu", (96,), lambda: (_ones(96),), F.gelu),
    Case("aten::_softmax", (96,), lambda: (_ones(96),), lambda a: torch.softmax(a, 1)),
    Case("aten::native_layer_norm", (96,), lambda: (_ones(96),), lambda a: F.layer_norm(a, (1024,))),
    Case("aten::cat", (64, 64), lambda: (_ones(64), _ones(64)), lambda a, b: torch.cat([a, b])),
    Case("aten::_fused_adam_", (32,) * 4, lambda: tuple(_ones(32) for _ in range(4)), _adam, writes=(0, 2, 3)),
)
ROWS = (
    Case("aten::embedding", (_TABLE_MIB,), lambda: _table(1024), _looked_up, draws=2048, row_bytes=4096),
    Case("aten::embedding", (_TABLE_MIB,), lambda: _table(256), _looked_up, draws=2048, row_bytes=1024),
    Case("aten::index_select", (_TABLE_MIB,), lambda: _table(4096), _selected, draws=512, row_bytes=16384),
    Case("aten::index_add_", (_TABLE_MIB,), lambda: _table(1024), _added, writes=(0,), draws=2048, row_bytes=4096),
)


def measure(case: Case, budget_mib: int) -> Row:
    """Return one case as `page_faults.Run` has it: the mean of the last calls, when frames are as full as they get."""
    share = _SHARE_FOR_ROWS if case.draws else _SHARE_OF_LIMIT
    budget, maps = budget_mib * MIB, "auto" if case.draws else "always"
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(budget, f"disk:{folder}", device="cpu", map=maps, split="never", plan=False, record=False) as its,
    ):
        operands = case.make()
        moved = []
        for call in range(_CALLS * (5 if case.draws else 1)):
            more = (_rows(operands[0], case.draws, call),) if case.draws else ()
            before = its.stats
            kept = case.call(*operands, *more)
            moved.append(_moved(before, its.stats))
            del kept
        del operands
    into, out = (statistics.mean(each) for each in zip(*moved[-_CALLS:], strict=True))
    chunk = _PAGE if case.draws else min(MIB, budget // share // _CHUNKS)
    return {
        "op": case.op, "operands_mib": [*case.operands_mib],
        "writes": [*case.writes], "window_mib": budget_mib // share, "chunk_kib": chunk >> 10, "into_mib": into / MIB,
        "out_mib": out / MIB, "draws": case.draws, "row_bytes": case.row_bytes, "settles": not case.draws,
        "by": "engine",
    }  # fmt: skip


def _moved(before: memfit.Stats, after: memfit.Stats) -> tuple[int, int]:
    return after.mapped_bytes_in - before.mapped_bytes_in, after.mapped_bytes_out - before.mapped_bytes_out


def table(rows: Sequence[Row]) -> Table:
    """Return one row a case."""
    lines = [[row["op"], row["operands_mib"], row["window_mib"], f"{row['into_mib']:.1f}", f"{row['out_mib']:.1f}"]
             for row in rows]  # fmt: skip
    return Table("Bytes of one op on mapped storages, MiB", ["op", "operands", "window", "in", "out"], lines)


def run(*, budget_mib: int = 256) -> Iterator[Result]:
    """Run each op in a session of this budget."""
    rows = [measure(case, budget_mib) for case in (*STREAMS, *ROWS)]
    yield Result("paged_runs", rows, [table(rows)])

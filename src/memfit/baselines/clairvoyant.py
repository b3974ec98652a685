"""Furthest-next-use eviction with the whole future known: the bytes it moves, to measure other policies by.

The policy has no fragmentation and evicts, when room is needed, the idle storage whose next use is furthest.
A storage that was not written since it was brought in leaves for free; one freed while it is out never comes
back; an op that overwrites a storage still brings it in, since a write is not known to be total.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memfit._native import clairvoyant_bytes
from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.units import format_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that move in one iteration, out of the arena and into it."""

    bytes_out: int
    bytes_in: int


def clairvoyant(trace: Trace, budget_bytes: int) -> Traffic:
    """Return the bytes that the policy moves in one steady iteration of `trace` in `budget_bytes`.

    Raises BudgetError if one op's working set and the pinned bytes exceed the budget.
    """
    result = clairvoyant_bytes(**_columns(trace), budget_bytes=budget_bytes - trace.pinned_bytes)
    required_bytes = result.required_bytes + trace.pinned_bytes
    if required_bytes > budget_bytes:
        op = trace.ops[result.required_op]
        raise BudgetError(
            f"a budget of {format_bytes(budget_bytes)} is too small for this trace",
            why=f"{op.name} at {op.source or 'an unknown line'} needs {required_bytes} bytes at once",
            remedy=f"use a budget of at least {format_bytes(required_bytes)}",
            required_bytes=required_bytes,
            op=op.name,
            source=op.source,
        )
    return Traffic(result.bytes_out, result.bytes_in)


def _columns(trace: Trace) -> dict[str, Any]:
    rows = [
        _distinct_accesses((*op.reads, *pinned), op.writes)
        for op, pinned in zip(trace.ops, _pinned(trace), strict=True)
    ]
    return {
        "size_bytes": _int64(s.size_bytes for s in trace.storages),
        "alloc_tick": _int64(s.alloc_tick for s in trace.storages),
        "free_tick": _int64(s.free_tick for s in trace.storages),
        "first_tick": _int64(op.first_tick for op in trace.ops),
        "workspace_bytes": _int64(op.workspace_bytes for op in trace.ops),
        "access_begin": _int64(accumulate((len(row) for row in rows), initial=0)),
        "access_storage": _int64(storage for row in rows for storage in row),
        "access_is_write": np.fromiter((w for row in rows for w in row.values()), dtype=np.uint8),
        "ticks": trace.ticks,
        "alignment": trace.alignment,
    }


def _pinned(trace: Trace) -> list[list[int]]:
    """Return, for each op, what is pinned while it runs: that stays as if the op read it."""
    found: list[list[int]] = [[] for _ in trace.ops]
    for index, storage in enumerate(trace.storages):
        begin = trace.stays_from(storage)
        for op in () if begin is None else range(begin, storage.free):
            found[op].append(index)
    return found


def _distinct_accesses(reads: tuple[int, ...], writes: tuple[int, ...]) -> dict[int, bool]:
    """Return whether the op writes each storage it accesses."""
    return dict.fromkeys(reads, False) | dict.fromkeys(writes, True)


def _int64(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)

"""Trace <-> file: columns of numbers with one table of strings, checked in full on the way in."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from memfit.files.document import Fields, read_document, write_document
from memfit.ir import BEFORE_FIRST_TICK, Category, Demand, Handover, Op, Phase, Storage, Trace, accesses

_KIND = "trace"
_VERSION = 1
_NEVER = -1  # the `pinned_from` of a storage that is not pinned
_HANDOVER = ("op", "giver", "taker")

_Name = TypeVar("_Name", bound=StrEnum)


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file, which appears whole or not at all.

    Arguments:
        trace: The trace.
        path: The file; it is gzipped if its name ends in ".gz".

    Raises:
        InputError: The file cannot be written.
    """
    strings = _StringTable()
    body = {
        "signature": trace.signature,
        "torch_version": trace.torch_version,
        "device": trace.device,
        "script": trace.script,
        "iteration": trace.iteration,
        "alignment": trace.alignment,
        "pinned_bytes": trace.pinned_bytes,
        "ticks": trace.ticks,
        "before": None if trace.before is None else asdict(trace.before),
        "storages": _storage_columns(trace.storages, strings),
        "ops": _op_columns(trace.ops, strings),
        "handovers": {name: [getattr(each, name) for each in trace.handovers] for name in _HANDOVER},
        "strings": list(strings.ids),
    }
    write_document(path, _KIND, _VERSION, body)


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from a file and check it in full.

    Arguments:
        path: A file of `save_trace` or `memfit trace`, gzipped or not.

    Returns:
        The trace.

    Raises:
        InputError: The file is malformed. The message names the file, the field and the reason.
    """
    fields = read_document(path, _KIND, _VERSION)
    strings = fields.texts("strings")
    trace = Trace(
        ops=_ops(fields.section("ops"), strings),
        storages=_storages(fields.section("storages"), strings),
        ticks=fields.integer("ticks", 0),
        signature=fields.text("signature"),
        torch_version=fields.text("torch_version"),
        device=fields.text("device"),
        script=fields.text("script"),
        iteration=fields.integer("iteration", 0),
        alignment=fields.integer("alignment", 1),
        pinned_bytes=fields.integer("pinned_bytes", 0),
        before=_demand(fields),
        handovers=_handovers(fields),
    )
    _check_ops(trace, fields.section("ops"))
    _check_lifetimes(trace, fields.section("storages"))
    _check_ticks_distinct(trace, fields.section("storages"))
    _check_accesses(trace, fields.section("ops"))
    _check_handovers(trace, fields)
    return trace


class _StringTable:
    """Numbers each distinct string in order of appearance."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def column(self, texts: Iterable[str]) -> list[int]:
        return [self.ids.setdefault(str(text), len(self.ids)) for text in texts]


def _storage_columns(storages: tuple[Storage, ...], strings: _StringTable) -> dict[str, Any]:
    return {
        "size_bytes": [storage.size_bytes for storage in storages],
        "category": strings.column(storage.category for storage in storages),
        "alloc": [storage.alloc for storage in storages],
        "free": [storage.free for storage in storages],
        "alloc_tick": [storage.alloc_tick for storage in storages],
        "free_tick": [storage.free_tick for storage in storages],
        "source": strings.column(storage.source for storage in storages),
        "module": strings.column(storage.module for storage in storages),
        "stored_bytes": [storage.stored_bytes for storage in storages],
        "pinned_from": [_NEVER if storage.pinned_from is None else storage.pinned_from for storage in storages],
        "pinned_by": strings.column(storage.pinned_by for storage in storages),
    }


def _op_columns(ops: tuple[Op, ...], strings: _StringTable) -> dict[str, Any]:
    return {
        "name": strings.column(op.name for op in ops),
        "phase": strings.column(op.phase for op in ops),
        "duration_us": [op.duration_us for op in ops],
        "source": strings.column(op.source for op in ops),
        "first_tick": [op.first_tick for op in ops],
        "workspace_bytes": [op.workspace_bytes for op in ops],
        "tensors": strings.column(op.tensors for op in ops),
        "split_bytes": [op.split_bytes for op in ops],
        "read_count": [len(op.reads) for op in ops],
        "reads": [storage for op in ops for storage in op.reads],
        "write_count": [len(op.writes) for op in ops],
        "writes": [storage for op in ops for storage in op.writes],
    }


def _storages(columns: Fields, strings: list[str]) -> tuple[Storage, ...]:
    sizes = columns.integers("size_bytes", None, 0)
    count = len(sizes)
    rows = zip(
        sizes,
        _names(columns, "category", count, strings, Category),
        columns.integers("alloc", count, 0),
        columns.integers("free", count, 0),
        columns.integers("alloc_tick", count, BEFORE_FIRST_TICK),
        columns.integers("free_tick", count, 0),
        columns.picks("source", count, strings),
        # (A file from before these fields were has none.)
        columns.picks("module", count, strings) if "module" in columns.values else [""] * count,
        columns.integers("stored_bytes", count, 0) if "stored_bytes" in columns.values else [0] * count,
        _pins(columns, count),
        columns.picks("pinned_by", count, strings) if "pinned_by" in columns.values else [""] * count,
        strict=True,
    )
    return tuple(Storage(*row) for row in rows)


def _pins(columns: Fields, count: int) -> list[int | None]:
    if "pinned_from" not in columns.values:
        return [None] * count
    return [None if op == _NEVER else op for op in columns.integers("pinned_from", count, _NEVER)]


def _ops(columns: Fields, strings: list[str]) -> tuple[Op, ...]:
    first_ticks = columns.integers("first_tick", None, 0)
    count = len(first_ticks)
    rows = zip(
        columns.picks("name", count, strings),
        _names(columns, "phase", count, strings, Phase),
        columns.durations("duration_us", count),
        columns.picks("source", count, strings),
        _ragged(columns, "read_count", "reads", count),
        _ragged(columns, "write_count", "writes", count),
        first_ticks,
        columns.integers("workspace_bytes", count, 0),
        # (A file from before the field was has none.)
        columns.picks("tensors", count, strings) if "tensors" in columns.values else [""] * count,
        columns.integers("split_bytes", count, 0) if "split_bytes" in columns.values else [0] * count,
        strict=True,
    )
    return tuple(Op(*row) for row in rows)


def _demand(fields: Fields) -> Demand | None:
    if fields.values.get("before") is None:  # nothing ran before, or the file is from before the field was
        return None
    demand = fields.section("before")
    names = ("operand_bytes", "workspace_bytes", "fixed_bytes", "small_bytes")
    parts = [demand.integer(name, 0) for name in names]
    parts.append(demand.integer("split_bytes", 0) if "split_bytes" in demand.values else 0)  # an older file has none
    return Demand(demand.text("name"), demand.text("source"), *parts)


def _handovers(fields: Fields) -> tuple[Handover, ...]:
    if "handovers" not in fields.values:  # the file is from before the field was
        return ()
    columns = fields.section("handovers")
    ops = columns.integers("op", None, 0)
    return tuple(map(Handover, ops, *(columns.integers(name, len(ops), 0) for name in _HANDOVER[1:])))


def _names(columns: Fields, field: str, count: int, strings: list[str], kind: type[_Name]) -> list[_Name]:
    known = {name.value: name for name in kind}
    texts = columns.picks(field, count, strings)
    for index, text in enumerate(texts):
        if text not in known:
            columns.fail(f"{field}[{index}]", f"is {text!r}, not one of {', '.join(known)}")
    return [known[text] for text in texts]


def _ragged(columns: Fields, count_field: str, field: str, count: int) -> Iterator[tuple[int, ...]]:
    ends = [0, *accumulate(columns.integers(count_field, count, 0))]
    values = columns.integers(field, ends[-1], 0)
    return (tuple(values[begin:end]) for begin, end in pairwise(ends))


def _check_ops(trace: Trace, columns: Fields) -> None:
    if not trace.ops:
        columns.fail("name", "has no entry: a trace has at least one op")
    previous = 0
    for index, op in enumerate(trace.ops):
        if not previous <= op.first_tick <= trace.ticks:
            reason = f"is {op.first_tick}, outside [{previous}, {trace.ticks}]"
            columns.fail(f"first_tick[{index}]", reason)
        previous = op.first_tick


def _check_lifetimes(trace: Trace, columns: Fields) -> None:
    first_ticks = [op.first_tick for op in trace.ops]
    for index, storage in enumerate(trace.storages):
        allowed_alloc = {0} if storage.born_before else _op_indices(first_ticks, storage.alloc_tick)
        if storage.alloc not in allowed_alloc:
            columns.fail(f"alloc[{index}]", f"is {storage.alloc}, but its tick is in op {min(allowed_alloc)}")
        if not storage.alloc_tick < storage.free_tick <= trace.ticks:
            reason = f"is {storage.free_tick}, outside ({storage.alloc_tick}, {trace.ticks}]"
            columns.fail(f"free_tick[{index}]", reason)
        outlives = trace.outlives(storage)
        allowed_free = {len(trace.ops)} if outlives else _op_indices(first_ticks, storage.free_tick)
        if storage.free not in allowed_free or storage.free < storage.alloc:
            columns.fail(f"free[{index}]", f"is {storage.free}, but its tick is in op {min(allowed_free)}")
        if storage.pinned_from is not None and not storage.alloc <= storage.pinned_from <= storage.free:
            reason = f"is {storage.pinned_from}, outside [{storage.alloc}, {storage.free}]"
            columns.fail(f"pinned_from[{index}]", reason)


def _op_indices(first_ticks: list[int], tick: int) -> set[int]:
    """Return the op indices an event at `tick` may carry: ticks do not tell inside an op from after it."""
    begun = bisect_right(first_ticks, tick)
    return {max(begun - 1, 0), begun}


def _check_ticks_distinct(trace: Trace, columns: Fields) -> None:
    taken: set[int] = set()
    for index, storage in enumerate(trace.storages):
        for field, tick in (("alloc_tick", storage.alloc_tick), ("free_tick", storage.free_tick)):
            if tick in taken:
                columns.fail(f"{field}[{index}]", f"is {tick}, which another event has")
            if 0 <= tick < trace.ticks:
                taken.add(tick)


def _check_accesses(trace: Trace, columns: Fields) -> None:
    for access in accesses(trace):
        field = "writes" if access.is_write else "reads"
        if access.storage >= len(trace.storages):
            columns.fail(field, f"of op {access.op} names storage {access.storage}, which does not exist")
        storage = trace.storages[access.storage]
        if not storage.alloc <= access.op < storage.free:
            reason = f"names storage {access.storage}, alive only in [{storage.alloc}, {storage.free})"
            columns.fail(field, f"of op {access.op} {reason}")


def _check_handovers(trace: Trace, fields: Fields) -> None:
    for index, each in enumerate(trace.handovers):
        columns = fields.section("handovers")
        if each.op >= len(trace.ops):
            columns.fail(f"op[{index}]", f"is {each.op}, but there are {len(trace.ops)} ops")
        op = trace.ops[each.op]
        if each.giver not in op.reads or each.giver in op.writes:
            columns.fail(f"giver[{index}]", f"is {each.giver}, which op {each.op} does not read, or writes")
        is_made = each.taker in op.writes and trace.storages[each.taker].alloc == each.op
        if not is_made or trace.storages[each.taker].size_bytes != trace.storages[each.giver].size_bytes:
            columns.fail(f"taker[{index}]", f"is {each.taker}, which op {each.op} does not make with the giver's bytes")

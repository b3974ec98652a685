"""PyTorch CUDA memory snapshots (`torch.cuda.memory._dump_snapshot`, torch 2.1 on) -> lifetimes.

Time 0 is before the first event of the device's trace, time k + 1 that of event k. A block is alive from its alloc
until its free completed, or was requested in a trace without completions. Sizes are those requested, not those the
caching allocator rounded them to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from memfit.arrays import INT64_MAX
from memfit.errors import InputError
from memfit.events import NamedLifetimes, lifetimes_of_rows
from memfit.files.plain_pickle import brief, load_plain_pickle

_FREED = ("free_completed", "free")  # "free" in snapshots of the first versions
_REQUESTED = ("free_requested",)
_TORCH_FILES = ("/torch/", "<frozen ")
_REMEDY = (
    "record it with torch.cuda.memory._record_memory_history() before the iteration and "
    "torch.cuda.memory._dump_snapshot(path) after it"
)


def load_snapshot(path: str | os.PathLike[str], *, device: int | None = None) -> NamedLifetimes:
    """Read the lifetimes of every block on `device` (default: the one with most events), with their source lines.

    The file is a pickle; nothing in it is executed.

    Arguments:
        path: A file of `torch.cuda.memory._dump_snapshot`.
        device: The number of a device; None takes the one with most events.

    Returns:
        The lifetimes.

    Raises:
        InputError: The file is malformed. The message names the entry, the field and the reason.
    """
    top = _Record(str(path), "", load_plain_pickle(path))
    traces = [list(trace.entries("")) for trace in top.entries("device_traces")]
    chosen = _device(str(path), [len(trace) for trace in traces], device)
    blocks = _Blocks(_freeing(traces[chosen]))
    for trace_entry in traces[chosen]:
        blocks.step(trace_entry)
    blocks.end(_segment_blocks(top, chosen))
    return blocks.lifetimes()


@dataclass(slots=True)  # frozen ones take three times as long to make, and there are millions
class _Record:
    """One object of the snapshot and where it is, to name it when something in it is wrong."""

    path: str
    place: str
    value: Any

    def fail(self, field: str, reason: str) -> NoReturn:
        place = f"{self.place}.{field}".strip(".") or "the snapshot"
        raise InputError(f"{self.path}: {place} {reason}", why="not a memory snapshot of torch", remedy=_REMEDY)

    def has(self, field: str) -> bool:
        return isinstance(self.value, dict) and field in self.value

    def entries(self, field: str) -> Iterator[_Record]:
        """Yield the records listed in `field`, or in this very record if `field` is empty."""
        value = self._get(field) if field else self.value
        if not isinstance(value, list | tuple):
            self.fail(field, "is not a list")
        place = f"{self.place}.{field}".strip(".")
        for index, entry in enumerate(value):
            yield _Record(self.path, f"{place}[{index}]", entry)

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str):
            self.fail(field, f"is not a string: {brief(value)}")
        return value

    def integer(self, field: str) -> int:
        value = self._get(field)
        if type(value) is not int:  # True is an int to isinstance
            self.fail(field, f"is not an integer: {brief(value)}")
        if not 0 <= value <= INT64_MAX:
            self.fail(field, f"is {brief(value)}, outside [0, {INT64_MAX}]")
        return value

    def _get(self, field: str) -> Any:
        if not isinstance(self.value, dict):
            self.fail("", f"is not a dict: {brief(self.value)}")
        if field not in self.value:
            self.fail(field, "is missing")
        return self.value[field]


def _device(path: str, counts: list[int], device: int | None) -> int:
    if not any(counts):
        why = "it has no event on any device: the history was not recorded"
        raise InputError(f"{path} holds no trace", why=why, remedy=_REMEDY)
    chosen = counts.index(max(counts)) if device is None else device
    if not 0 <= chosen < len(counts) or not counts[chosen]:
        there = ", ".join(str(number) for number, count in enumerate(counts) if count)
        raise InputError(f"{path} has no event on device {device}", why=f"devices: {there}", remedy="name one of these")
    return chosen


def _freeing(trace: list[_Record]) -> tuple[str, ...]:
    """Return the actions that end a lifetime: a free's request, where the recording leaves out its completion."""
    actions = {entry.text("action") for entry in trace}
    return _FREED if actions.intersection(_FREED) else _REQUESTED


class _Blocks:
    """Follows which address is which lifetime, event by event.

    Recording can be paused. An allocation where a block is alive shows that a free was missed: the block counts as
    freed there. A second free shows that an allocation was missed: its lifetime is unknown and left out.
    """

    def __init__(self, freeing: tuple[str, ...]) -> None:
        self._freeing = freeing
        self._before: list[tuple[int, int, str]] = []  # upper, size, source
        self._born: list[tuple[int, int, int, str]] = []  # lower, upper, size, source
        self._alive: dict[int, tuple[int, int, str]] = {}  # lower, size, source
        self._seen: set[int] = set()
        self._now = 0

    def step(self, entry: _Record) -> None:
        self._now += 1
        action = entry.text("action")
        if action != "alloc" and action not in self._freeing:
            return
        address = entry.integer("addr")
        freed = self._free(address)
        if action == "alloc":
            self._alive[address] = (self._now, entry.integer("size"), _source(entry))
        elif not freed and address not in self._seen:
            self._before.append((self._now, entry.integer("size"), ""))
        self._seen.add(address)

    def end(self, last: Iterator[_Record]) -> None:
        """Close what is alive at the end; `last` are the blocks alive then, of which some had no event."""
        self._now += 1
        for address in list(self._alive):
            self._free(address)
        for block in last:
            if block.integer("address") not in self._seen:
                size = block.integer("requested_size" if block.has("requested_size") else "size")
                self._before.append((self._now, size, _source(block)))

    def lifetimes(self) -> NamedLifetimes:
        rows = [(0, *row) for row in self._before] + sorted(self._born)
        ids = ((str(number), lower, upper, size) for number, (lower, upper, size, _) in enumerate(rows))
        sources = tuple(source for *_, source in rows)
        return lifetimes_of_rows(ids, sources if any(sources) else ())

    def _free(self, address: int) -> bool:
        if address not in self._alive:
            return False
        lower, size, source = self._alive.pop(address)
        self._born.append((lower, self._now, size, source))
        return True


def _segment_blocks(top: _Record, device: int) -> Iterator[_Record]:
    """Yield the blocks in use at the end of the trace; each gets its address where old snapshots leave it out."""
    for segment in top.entries("segments"):
        if segment.has("device") and segment.integer("device") != device:
            continue
        address = segment.integer("address")
        for block in segment.entries("blocks"):
            if block.text("state").startswith("active"):
                yield _Record(block.path, block.place, {"address": address} | block.value)
            address += block.integer("size")


def _source(record: _Record) -> str:
    """Return the innermost line of Python outside torch, otherwise of torch; "" if no line is known."""
    inside_torch = ""
    for frame in record.entries("frames") if record.has("frames") else ():
        name = frame.text("filename")
        if not name.endswith(".py"):
            continue
        source = f"{name}:{frame.integer('line')}"
        if not any(part in name for part in _TORCH_FILES):
            return source
        inside_torch = inside_torch or source
    return inside_torch

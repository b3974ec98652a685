"""From the engine's raw recording to a Trace of one iteration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memfit.ir import BEFORE_FIRST_TICK, Handover, Op, Phase, Storage, Trace
from memfit.tracing.categories import categorise
from memfit.tracing.demand import largest_demand, own_workspaces

Rows = NDArray[Any]
"""A table, one row after another. Its columns are fields of int64, named by the engine: `rows["block"]`."""
_PIN = ("block", "ops_begun", "inside_op", "tick", "source")


@dataclass
class Roles:
    """Block ids that optimizers or modules named: what they hold cannot be told from the ops alone."""

    parameters: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)
    optimizer_states: set[int] = field(default_factory=set)
    are_of_modules: bool = False  # whose parameters and buffers are the whole model


def table_of(raw: Mapping[str, Any], name: str) -> Rows:
    """Return one of the tables that the engine returned, by the names it gives to their columns."""
    return np.frombuffer(raw[name], np.dtype([(column, np.int64) for column in raw["columns"][name]]))


@dataclass(frozen=True)
class RawRecording:
    """The engine's tables (see native/engine/recorder.h)."""

    ops: Rows
    accesses: Rows
    ticks: Rows  # an allocation or a free each; the bytes of a free are negative
    before: Rows  # the blocks that were alive when it began
    op_names: Sequence[str]
    sources: Sequence[str]
    ghosts: Rows = field(default_factory=lambda: np.empty(0, np.int64))  # the blocks without bytes, of device meta
    handovers: Rows = field(default_factory=lambda: np.empty(0, [(c, np.int64) for c in ("op", "giver", "taker")]))
    # What was written of a block that left for a tier that compresses; a later row is the truer one.
    stored: Rows = field(default_factory=lambda: np.empty(0, [(c, np.int64) for c in ("block", "bytes")]))
    # The blocks that were pinned, by when.
    pins: Rows = field(default_factory=lambda: np.empty(0, [(c, np.int64) for c in _PIN]))
    shapes: Sequence[str] = ()  # of each op's tensors, where they are noted
    phases: Sequence[Phase] = tuple(Phase)  # by number
    modules: Sequence[str] = ()  # that ticks have the numbers of, where they were noted

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> RawRecording:
        """Read what `engine.stop_recording()` returned."""
        tables = {
            name: table_of(raw, name) for name in ("ops", "accesses", "ticks", "before", "handovers", "stored", "pins")
        }
        shapes = list(raw.get("shapes", ()))
        shapes += [""] * (len(tables["ops"]) - len(shapes))
        return cls(**tables, op_names=raw["op_names"], sources=[_short(s) for s in raw["sources"]],
                   ghosts=np.frombuffer(raw.get("ghosts", b""), np.int64), shapes=shapes,
                   phases=[Phase(name) for name in raw["phases"]], modules=())  # fmt: skip

    def ticks_of(self, first: int, last: int) -> tuple[int, int]:
        """Return which ticks come from the beginning of op `first` to that of op `last`, or to the end."""
        begins = self.ops["first_tick"]
        return int(begins[first]), int(begins[last]) if last < len(begins) else len(self.ticks)

    def cut(self, first: int, last: int, ticks: tuple[int, int]) -> RawRecording:
        """Return ops [first, last), counted from 0, and what they need: of ticks before `ticks` those still true."""
        begin, end = ticks
        past = self.ticks[:begin]
        gone = past["block"][past["bytes"] <= 0]
        past = past[~np.isin(past["block"], gone)]
        kept, ops = np.concatenate((past, self.ticks[begin:end])), self.ops[first:last].copy()
        accesses = self.accesses[(self.accesses["op"] >= first) & (self.accesses["op"] < last)]
        accesses["op"] -= first
        handovers = self.handovers[(self.handovers["op"] >= first) & (self.handovers["op"] < last)]
        handovers["op"] -= first
        kept["ops_begun"] -= first
        ops["first_tick"] += len(past) - begin
        before = self.before[~np.isin(self.before["block"], gone)]
        pins = self.pins[(self.pins["tick"] <= end) & ~np.isin(self.pins["block"], gone)]
        pins["ops_begun"] -= first
        pins["tick"] = np.maximum(pins["tick"] + len(past) - begin, 0)
        return replace(
            self, ops=ops, accesses=accesses, ticks=kept, before=before, handovers=handovers,
            shapes=self.shapes[first:last], pins=pins,
        )  # fmt: skip

    def with_workspaces(self, workspaces: NDArray[np.int64]) -> RawRecording:
        """Return this recording with these workspaces of its ops."""
        ops = self.ops.copy()
        ops["workspace_bytes"] = workspaces
        return replace(self, ops=ops)

    def with_modules(self, calls: Iterable[tuple[int, int, str]]) -> RawRecording:
        """Return this recording with the modules of its ticks.

        Arguments:
            calls: The first tick of each call of a module, one more than the last, and the module's name; outer calls
                before those in them.
        """
        numbers: dict[str, int] = {}
        ticks = np.empty(len(self.ticks), [*self.ticks.dtype.descr, ("module", np.int64)])
        for name in self.ticks.dtype.names or ():
            ticks[name] = self.ticks[name]
        ticks["module"] = -1
        for begin, end, name in calls:
            ticks["module"][begin:end] = numbers.setdefault(name, len(numbers))
        return replace(self, ticks=ticks, modules=tuple(numbers))

    def source(self, index: int) -> str:
        """Return the text of a source index; '' for none."""
        return self.sources[index] if index >= 0 else ""


@dataclass
class _Life:
    """One storage while the trace is being put together."""

    block: int
    size_bytes: int
    alloc: int = 0
    free: int = 0
    alloc_tick: int = BEFORE_FIRST_TICK
    free_tick: int = -1
    source: str = ""
    module: str = ""
    stays: bool = False  # though it is no storage
    pinned_from: int | None = None
    pinned_by: str = ""


def build_trace(raw: RawRecording, first: int, last: int, roles: Roles, **about: Any) -> Trace:
    """Return the iteration that ops [first, last) of the recording make up; `about` as for `build_iteration`."""
    return build_iteration(raw, first, last, roles, **about)[0]


def build_iteration(raw: RawRecording, first: int, last: int, roles: Roles, **about: Any) -> tuple[Trace, list[int]]:
    """Return the iteration that ops [first, last) of the recording make up, and its storages' block ids.

    `about` has the fields of Trace that the recording does not know: signature, script, iteration and so on.
    """
    raw = raw.with_workspaces(own_workspaces(raw, about["alignment"]))
    first_tick, last_tick = raw.ticks_of(first, last)
    lives = _alive_at(raw, first_tick)
    _replay(raw, lives, first, last, first_tick, last_tick)
    _pin(raw, lives, first, last, last_tick)
    pinned_bytes = sum(life.size_bytes for life in lives if life.stays)
    lives = [life for life in lives if not life.stays]
    ids = {life.block: index for index, life in enumerate(lives)}
    ops = _ops(raw, first, last, first_tick, ids, lives)
    categories = categorise(ops, [life.block for life in lives], [life.alloc for life in lives],
                            [life.alloc_tick == BEFORE_FIRST_TICK for life in lives], roles)  # fmt: skip
    stored = dict(raw.stored[["block", "bytes"]].tolist())
    storages = tuple(
        Storage(
            life.size_bytes,
            category,
            life.alloc,
            life.free,
            life.alloc_tick,
            life.free_tick,
            life.source,
            life.module,
            stored.get(life.block, 0),
            life.pinned_from,
            life.pinned_by,
        )  # fmt: skip
        for life, category in zip(lives, categories, strict=True)
    )
    if "before" not in about:
        about["before"] = largest_demand(raw, first, about["alignment"])
    trace = Trace(ops=ops, storages=storages, ticks=last_tick - first_tick, pinned_bytes=pinned_bytes,
                  handovers=tuple(_handovers(raw, first, ids, ops)), **about)  # fmt: skip
    return trace, [life.block for life in lives]


def _alive_at(raw: RawRecording, tick: int) -> list[_Life]:
    """Return the storages that are alive before tick number `tick`."""
    before = raw.before[["block", "bytes", "stays"]].tolist()
    alive = {block: _Life(block, size, stays=bool(stays)) for block, size, stays in before}
    for block, size, source in raw.ticks[["block", "bytes", "source"]][:tick].tolist():
        if size > 0:
            alive[block] = _Life(block, size, source=raw.source(source))
        else:
            alive.pop(block, None)
    return list(alive.values())


def _replay(raw: RawRecording, lives: list[_Life], first: int, last: int, begin: int, end: int) -> None:
    """Append the storages allocated in ticks [begin, end) and set where every lifetime ends."""
    count = last - first
    alive = {life.block: life for life in lives}
    ticks = raw.ticks[begin:end][["block", "bytes", "ops_begun", "inside_op", "source"]]
    modules = raw.ticks["module"][begin:end].tolist() if raw.modules else [-1] * (end - begin)
    for tick, ((block, size, begun, inside, source), module) in enumerate(zip(ticks.tolist(), modules, strict=True)):
        begun -= first
        if size > 0:
            alloc = min(max(begun - 1 if inside else begun, 0), count - 1)
            alive[block] = _Life(block, size, alloc=alloc, alloc_tick=tick, source=raw.source(source),
                                 module=raw.modules[module] if module >= 0 else "")  # fmt: skip
            lives.append(alive[block])
        elif (life := alive.pop(block, None)) is not None:
            life.free, life.free_tick = min(max(begun, life.alloc), count), tick
    for life in alive.values():
        life.free, life.free_tick = count, end - begin


def _pin(raw: RawRecording, lives: list[_Life], first: int, last: int, end: int) -> None:
    """Set from which op on each storage is pinned that was so before tick number `end`.

    What an op makes and frees again is its own each time that it runs: no plan moves it.
    """
    by_block = {life.block: life for life in lives}
    for block, begun, inside, source in raw.pins[raw.pins["tick"] <= end][list(_PIN[:3]) + ["source"]].tolist():
        life, op = by_block.get(block), begun - inside - first
        if life is None or (life.alloc_tick != BEFORE_FIRST_TICK and life.alloc + 1 == life.free < last - first):
            continue
        if life.pinned_from is None and op <= last - first:
            life.pinned_from, life.pinned_by = min(max(op, life.alloc), life.free), raw.source(source)


def _ops(raw: RawRecording, first: int, last: int, first_tick: int, ids: dict[int, int], lives: list[_Life]
         ) -> tuple[Op, ...]:  # fmt: skip
    count = last - first
    reads: list[list[int]] = [[] for _ in range(count)]
    writes: list[list[int]] = [[] for _ in range(count)]
    for op, block, is_write in raw.accesses[["op", "block", "is_write"]].tolist():
        index, storage = op - first, ids.get(block)
        if storage is None or not 0 <= index < count or not _alive(lives[storage], index):
            continue
        reads[index].append(storage)
        if is_write:
            writes[index].append(storage)
    for storage, life in enumerate(lives):
        # An op writes the storages that it allocates and does not free again.
        if life.alloc_tick != BEFORE_FIRST_TICK and life.free > life.alloc + 1:
            writes[life.alloc].append(storage)
    return tuple(_op(raw, first + i, first_tick, reads[i], writes[i]) for i in range(count))


def _handovers(raw: RawRecording, first: int, ids: Mapping[int, int], ops: Sequence[Op]) -> Iterator[Handover]:
    """Yield those of storages that are of use beyond the op: what it makes and frees again it does not write."""
    for row, giver, taker in raw.handovers[["op", "giver", "taker"]].tolist():
        op = row - first
        if 0 <= op < len(ops) and ids.get(giver) in ops[op].reads and ids.get(taker) in ops[op].writes:
            yield Handover(op, ids[giver], ids[taker])


def _alive(life: _Life, op: int) -> bool:
    return life.alloc <= op < life.free


def _op(raw: RawRecording, index: int, first_tick: int, reads: list[int], writes: list[int]) -> Op:
    row = dict(zip(raw.ops.dtype.names or (), raw.ops[index].tolist(), strict=True))
    return Op(
        name=raw.op_names[row["name"]],
        phase=raw.phases[row["phase"]],
        duration_us=max(row["end_ns"] - row["start_ns"] - row["waited_ns"], 0) / 1000,
        source=raw.source(row["forward_source"] if row["forward_source"] >= 0 else row["source"]),
        reads=tuple(sorted(set(reads))),
        writes=tuple(sorted(set(writes))),
        first_tick=row["first_tick"] - first_tick,
        workspace_bytes=row["workspace_bytes"],
        tensors=raw.shapes[index] if raw.shapes else "",
        split_bytes=row.get("split_bytes", 0),
    )


def _short(source: str) -> str:
    """Name a file relative to the working folder when it lies below it."""
    relative = os.path.relpath(source)
    return source if relative.startswith("..") else relative

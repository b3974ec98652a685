"""The needs of the ops before the recorded iteration: initialisation, first steps, an evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Demand, align_up
from memfit.planning.lifetimes import largest_small, leaves_uninitialised

if TYPE_CHECKING:
    from memfit.tracing.build import RawRecording

Int64Array = NDArray[np.int64]


def largest_demand(raw: RawRecording, ops: int, alignment: int) -> Demand | None:
    """Return the largest need of one of the first `ops` ops of the recording; None if there were no ops."""
    if ops == 0:
        return None
    accessed = _accesses(raw, ops)
    # The budget decides which storages are small, and the needs decide the budget.
    least = max(_demands(raw, ops, accessed, alignment, 0), key=_total)
    return max(_demands(raw, ops, accessed, alignment, largest_small(least.total_bytes)), key=_total)


def _total(demand: Demand) -> int:
    return demand.total_bytes


def _demands(
    raw: RawRecording, ops: int, accessed: dict[int, set[int]], alignment: int, small: int
) -> Iterator[Demand]:
    alive = _Alive(raw, alignment, small)
    columns = ["name", "source", "forward_source", "first_tick", "workspace_bytes", "split_bytes"]
    for row, (name, source, forward, tick, workspace, split) in enumerate(raw.ops[:ops][columns].tolist()):
        alive.go_on_to(tick, row)
        operands, small_operands = alive.use(accessed.get(row, ()))
        line = raw.source(forward if forward >= 0 else source)
        others = alive.small_bytes - small_operands
        yield Demand(raw.op_names[name], line, operands, workspace, alive.fixed_bytes, others, split)


def own_workspaces(raw: RawRecording, alignment: int) -> Int64Array:
    """Return each op's workspace, where that can be told, without what others of its name and operands needed.

    The engine notes the most that any op did whose name and operands' sizes are the same: for all `randn`, that of the
    largest. The allocations of an op that frees nothing leave no holes; then it needs their sum.
    """
    workspaces = raw.ops["workspace_bytes"].copy()
    rows, sizes = raw.ticks["ops_begun"] - 1, raw.ticks["bytes"]
    of_an_op = (raw.ticks["inside_op"] != 0) & (rows >= 0)
    allocated = np.zeros(len(workspaces), np.int64)
    rounded = -(-sizes // alignment) * alignment
    np.add.at(allocated, rows[of_an_op & (sizes > 0)], rounded[of_an_op & (sizes > 0)])
    allocated[rows[of_an_op & (sizes < 0)]] = 0
    return np.where(allocated > 0, np.minimum(workspaces, allocated), workspaces)


def _accesses(raw: RawRecording, ops: int) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for op, block in raw.accesses[raw.accesses["op"] < ops][["op", "block"]].tolist():
        found[op].add(block)
    return found


class _Alive:
    """The blocks that are alive as the recording goes on, and which of them stay in the arena."""

    def __init__(self, raw: RawRecording, alignment: int, small: int) -> None:
        self._raw = raw
        self._alignment = alignment
        self._small = small
        self._tick = 0
        self._sizes: dict[int, int] = {}
        self._fixed: set[int] = set()  # not used by an op yet, since C++ may be about to write to it
        self._pinned = set(raw.before["block"][raw.before["stays"] != 0].tolist())
        self._pins: dict[int, list[int]] = defaultdict(list)  # by the op from which on they are
        for block, begun, inside in raw.pins[["block", "ops_begun", "inside_op"]].tolist():
            self._pins[max(begun - inside, 0)].append(block)
        self._ticks = raw.ticks[["block", "bytes", "ops_begun", "inside_op"]]
        self.fixed_bytes = self.small_bytes = 0
        for block, size, stays in raw.before[["block", "bytes", "stays"]].tolist():
            self._add(block, size, fixed=bool(stays))

    def go_on_to(self, tick: int, op: int) -> None:
        """Take in what is allocated and freed before `tick`, and pinned before op `op` ends, the next one."""
        for block, size, begun, inside in self._ticks[self._tick : tick].tolist():
            self._remove(block)
            if size > 0:
                self._add(block, size, fixed=block in self._pinned or not inside or self._unfilled(begun - 1))
        self._tick = max(tick, self._tick)
        for block in self._pins.pop(op, ()):
            self._pin(block)

    def use(self, blocks: Iterable[int]) -> tuple[int, int]:
        """Return the bytes of those of `blocks` that an op brings in, and of the small ones among them."""
        used = [block for block in blocks if block in self._sizes and block not in self._pinned]
        for block in used:
            if block in self._fixed:
                self._fixed.remove(block)
                self.fixed_bytes -= self._sizes[block]
                self._count_small(self._sizes[block])
        sizes = [self._sizes[block] for block in used]
        return sum(sizes), sum(size for size in sizes if size <= self._small)

    def _pin(self, block: int) -> None:
        self._pinned.add(block)
        if block in self._sizes and block not in self._fixed:
            self._fixed.add(block)
            self.fixed_bytes += self._sizes[block]
            self._count_small(self._sizes[block], -1)

    def _unfilled(self, op: int) -> bool:
        return op >= 0 and leaves_uninitialised(self._raw.op_names[int(self._raw.ops["name"][op])])

    def _add(self, block: int, size_bytes: int, fixed: bool) -> None:
        self._sizes[block] = size = align_up(size_bytes, self._alignment)
        if fixed:
            self._fixed.add(block)
            self.fixed_bytes += size
        else:
            self._count_small(size)

    def _remove(self, block: int) -> None:
        size = self._sizes.pop(block, 0)
        if block in self._fixed:
            self._fixed.remove(block)
            self.fixed_bytes -= size
        else:
            self._count_small(size, -1)

    def _count_small(self, size: int, times: int = 1) -> None:
        self.small_bytes += times * size if size <= self._small else 0

"""What the ops before the recorded iteration needed: initialisation, first steps, a look at the test set."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Demand, align_up

if TYPE_CHECKING:
    from memfit.tracing.build import RawRecording

Int64Array = NDArray[np.int64]


def largest_demand(raw: RawRecording, ops: int, alignment: int) -> Demand | None:
    """Return the largest need of one of the first `ops` ops of the recording; None if there are none."""
    accessed = _accesses(raw, ops)
    alive = _Alive(raw, alignment)
    largest: Demand | None = None
    for row in range(ops):
        name, _, source, _, _, tick, workspace, forward, _ = raw.ops[row].tolist()
        alive.go_on_to(tick)
        operands = alive.used(accessed.get(row, ()))
        if largest is None or operands + workspace + alive.fixed_bytes > largest.total_bytes:
            line = raw.source(forward if forward >= 0 else source)
            largest = Demand(raw.op_names[name], line, operands, workspace, alive.fixed_bytes)
    return largest


def own_workspaces(raw: RawRecording, alignment: int) -> Int64Array:
    """Return each op's workspace, where that can be told, without what others of its name and operands needed.

    The engine notes the most that any op did whose name and operands' sizes are the same: for all `randn`, that of the
    largest. What an op allocates leaves no holes if it frees nothing, and then it needs the sum.
    """
    workspaces = raw.ops[:, 6].copy()
    rows, sizes = raw.ticks[:, 2] - 1, raw.ticks[:, 1]
    of_an_op = (raw.ticks[:, 3] != 0) & (rows >= 0)
    allocated = np.zeros(len(workspaces), np.int64)
    np.add.at(allocated, rows[of_an_op & (sizes > 0)], align_up(sizes[of_an_op & (sizes > 0)], alignment))
    allocated[rows[of_an_op & (sizes < 0)]] = 0
    return np.where(allocated > 0, np.minimum(workspaces, allocated), workspaces)


def _accesses(raw: RawRecording, ops: int) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for op, block, _ in raw.accesses[raw.accesses[:, 0] < ops].tolist():
        found[op].add(block)
    return found


class _Alive:
    """The blocks that are alive as the recording goes on, and which of them cannot leave the arena."""

    def __init__(self, raw: RawRecording, alignment: int) -> None:
        self._raw = raw
        self._alignment = alignment
        self._tick = 0
        self._sizes: dict[int, int] = {}
        self._fixed: dict[int, int] = {}  # pinned, or allocated outside any op and not used by one yet
        for block, size, pinned in raw.before.tolist():
            (self._fixed if pinned else self._sizes)[block] = align_up(size, alignment)
        self._pinned = frozenset(self._fixed)
        self.fixed_bytes = sum(self._fixed.values())

    def go_on_to(self, tick: int) -> None:
        """Take in what is allocated and freed before `tick`."""
        for block, size, _, inside, _ in self._raw.ticks[self._tick : tick].tolist():
            self._sizes.pop(block, None)
            self.fixed_bytes -= self._fixed.pop(block, 0)
            if size > 0 and inside:
                self._sizes[block] = align_up(size, self._alignment)
            elif size > 0:
                self._fixed[block] = align_up(size, self._alignment)
                self.fixed_bytes += self._fixed[block]
        self._tick = max(tick, self._tick)

    def used(self, blocks: set[int] | tuple[int, ...]) -> int:
        """Return the bytes of those of `blocks` that an op brings in: from its use on they may leave."""
        for block in blocks:
            if block not in self._pinned and (size := self._fixed.pop(block, None)) is not None:
                self._sizes[block] = size
                self.fixed_bytes -= size
        return sum(self._sizes.get(block, 0) for block in blocks)

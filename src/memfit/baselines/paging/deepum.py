"""DeepUM (Jung et al., ASPLOS 2023): managed memory, prefetched by what the last iterations missed.

Each op (a kernel there) has a table of the blocks that it had to wait for in earlier iterations, in their order. When
an op begins, the blocks in the tables of the next ones come in, as far as there is room that none of these needs: that
is the correlation of blocks within an op, and of one op with the next, where ops come in the same order every time.
What makes room is not what the next ops are known to need. Freed bytes are not copied, here as in all managed memory.
"""

from __future__ import annotations

from memfit.baselines.paging.managed import Fetch, Managed
from memfit.baselines.paging.policy import PagedRun
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.paging import Paged

LOOK_AHEADS = (4, 32)
"""The numbers of ops whose blocks come in ahead: the better one counts. Too many fill the memory too early."""
_ITERATIONS = 2
_MOST_ROUNDS = 4
"""So many iterations fill the tables, if no op misses less before."""

Tables = dict[int, dict[tuple[int, int], None]]


def deepum(trace: Trace, machine: Machine, budget_bytes: int) -> PagedRun:
    """Return the iteration after those that fill the tables; raises BudgetError if a block does not fit."""
    managed = Managed.of(trace, machine, budget_bytes, _ITERATIONS)
    missed = managed.run()
    runs = [_learnt(managed, missed, look_ahead) for look_ahead in LOOK_AHEADS]
    return managed.finished("deepum", min(runs, key=lambda run: run.iteration_us))


def _learnt(managed: Managed, found: Paged, look_ahead: int) -> Paged:
    tables: Tables = {}
    for _ in range(_MOST_ROUNDS):
        if not _note(tables, found, managed.op_count):
            break
        found = managed.run(_fetches(tables, managed.op_count, look_ahead))
    return found


def _note(tables: Tables, found: Paged, count: int) -> bool:
    """Add the blocks that ops had to wait for, in the steady iteration; return whether there are new ones."""
    before = sum(map(len, tables.values()))
    for op, first, last in found.missed.tolist():
        if op >= count:
            tables.setdefault(op - count, {})[first, last] = None
    return sum(map(len, tables.values())) > before


def _fetches(tables: Tables, count: int, look_ahead: int) -> list[Fetch]:
    """Return what each op has fetched: the table of the op so many ops later; the first op, those of all before."""
    return [
        (max(at - look_ahead, 0), first, last, at)
        for at in range(_ITERATIONS * count)
        for first, last in tables.get(at % count, ())
    ]

"""A training program whose storages all lie in managed memory, which the driver pages by itself.

In favour of this kind of memory: no fragmentation takes room, an allocator hands out memory that is there already,
freed bytes are never copied, and no two storages share a block. Those smaller than a chunk, which would share blocks
that are always in use, never leave.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.baselines.paging.policy import PagedRun
from memfit.errors import BudgetError
from memfit.ir import Trace, align_up
from memfit.machine import MANAGED, Faults, Machine
from memfit.planning.paging import Leaves, Paged, Pager
from memfit.units import format_bytes

Range = tuple[int, int, int]
Fetch = tuple[int, int, int, int]


def managed_faults(machine: Machine) -> Faults:
    """Return the way in which managed memory comes in on a machine: as it says, otherwise as literature does."""
    its = machine.faults
    return its if its is not None and its.block_bytes > its.chunk_bytes > 0 else MANAGED


@dataclass(frozen=True, slots=True)
class Managed:
    """A trace in managed memory.

    Attributes:
        machine: The links.
        budget_bytes: The budget.
        fixed_bytes: By op, the bytes of what never leaves.
        pager: Simulates what comes in and leaves.
    """

    machine: Machine
    budget_bytes: int
    fixed_bytes: Int64Array
    pager: Pager

    @classmethod
    def of(cls, trace: Trace, machine: Machine, budget_bytes: int, iterations: int) -> Managed:
        """Return the trace in managed memory; raises BudgetError if what never leaves and a block do not fit."""
        faults = managed_faults(machine)
        may_leave = ((s, each) for s, each in enumerate(trace.storages) if each.pinned_from is None)
        large = [s for s, storage in may_leave if storage.size_bytes >= faults.chunk_bytes]
        fixed_bytes = _without(trace, large)
        needed_bytes = int(fixed_bytes.max()) + (faults.block_bytes if large else 0)
        if needed_bytes > budget_bytes:
            raise BudgetError(
                f"managed memory of {format_bytes(budget_bytes)} is too small",
                why=f"what is smaller than a chunk never leaves, and a block has {faults.block_bytes} bytes",
                remedy=f"use a budget of at least {format_bytes(needed_bytes)}",
                required_bytes=needed_bytes,
            )
        return cls(machine, budget_bytes, fixed_bytes, Pager.of_window(trace, faults, large, iterations))

    @property
    def op_count(self) -> int:
        """The number of ops of one iteration."""
        return len(self.pager.trace.ops)

    def run(self, fetches: Collection[Fetch] = (), dismissed: Collection[Range] = ()) -> Paged:
        """Simulate, with these fetched before they are used, and these leaving before there is need."""
        window_bytes = self.budget_bytes - self.fixed_bytes
        return self.pager.run(self.machine, window_bytes, Leaves.LEAST_RECENT, fetches=fetches, dismissed=dismissed)

    def finished(self, policy: str, paged: Paged) -> PagedRun:
        """Return the figures of a simulated iteration."""
        return PagedRun(
            policy,
            self.budget_bytes,
            int((self.fixed_bytes + paged.used_bytes).max()),
            paged.compute_us,
            paged.iteration_us,
            int(paged.bytes_in.sum()),
            int(paged.bytes_out.sum()),
            int(paged.faults.sum()),
        )


def _without(trace: Trace, storages: Collection[int]) -> Int64Array:
    """Return the bytes, op by op, of what is there without these storages: what an op allocates is there all the while.

    What is allocated between two ops is there from the second one on, as the chunks of what is freed before it are not.
    """
    found = np.full(len(trace.ops), trace.pinned_bytes, dtype=np.int64)
    left = set(storages)
    for storage in (each for index, each in enumerate(trace.storages) if index not in left):
        found[storage.alloc : storage.free] += align_up(storage.size_bytes, trace.alignment)
    return found

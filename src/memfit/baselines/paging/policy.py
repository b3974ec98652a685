"""The interface of policies that leave bytes where they are until an op touches them: they plan no swaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from memfit.ir import Trace
from memfit.machine import Machine


@dataclass(frozen=True, slots=True)
class PagedRun:
    """A steady iteration in managed memory.

    Attributes:
        policy: The policy's name.
        budget_bytes: The budget.
        peak_bytes: The most bytes in the device's memory.
        compute_us: The time of the ops alone.
        iteration_us: The time of the iteration.
        bytes_in: The bytes copied into the device's memory.
        bytes_out: The bytes copied out of it.
        faults: The chunks that ops had to wait for.
    """

    policy: str
    budget_bytes: int
    peak_bytes: int
    compute_us: float
    iteration_us: float
    bytes_in: int
    bytes_out: int
    faults: int

    @property
    def overhead(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return (self.iteration_us - self.compute_us) / self.compute_us if self.compute_us else 0.0


class PagingPolicy(Protocol):
    """Runs one iteration in managed memory."""

    def __call__(self, trace: Trace, machine: Machine, budget_bytes: int) -> PagedRun:
        """Return the iteration in `budget_bytes`; raises BudgetError if nothing runs there."""

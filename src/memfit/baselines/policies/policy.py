"""The interface of swap policies, and what they share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from memfit.errors import BudgetError
from memfit.ir import Phase, Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap import ANY_GAP, candidates
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.planning.autoswap.slack import relax
from memfit.planning.lifetimes import Gap
from memfit.simulate import planned_bytes
from memfit.units import format_bytes


class Policy(Protocol):
    """Plans the swaps of one iteration."""

    def __call__(self, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
        """Return a plan within `budget_bytes`; raises BudgetError if the policy finds none."""


def all_gaps(trace: Trace) -> list[Gap]:
    """Return every gap of every storage that has bytes."""
    return candidates(trace, ANY_GAP)


def plan_of_swaps(name: str, trace: Trace, machine: Machine, budget_bytes: int, swaps: Iterable[Swap]) -> Plan:
    """Return the plan of `swaps` in the order in which they leave; raises BudgetError if they do not fit."""
    ordered = tuple(sorted(swaps, key=lambda swap: (swap.out_after, swap.in_before, swap.storage)))
    reached = int(planned_bytes(trace, ordered).max())
    if reached > budget_bytes:
        raise too_large(name, budget_bytes, reached)
    return Plan(trace.signature, len(trace.ops), name, machine.name, budget_bytes, ordered)


def plan_that_waits_for_room(
    name: str, trace: Trace, machine: Machine, budget_bytes: int, swaps: Iterable[Swap]
) -> Plan:
    """Return the plan of `swaps`, each waited for only where its bytes are needed; raises BudgetError if none fits.

    For systems whose copies out run beside the ops until an allocation fails: no op waits for one before that.
    """
    plan = plan_of_swaps(name, trace, machine, budget_bytes, swaps)
    return replace(plan, swaps=tuple(relax(trace, plan.swaps, budget_bytes)))


def too_large(name: str, budget_bytes: int, reached_bytes: int) -> BudgetError:
    """Return the error that policy `name` came down to `reached_bytes` only."""
    return BudgetError(
        f"{name} finds no plan within {format_bytes(budget_bytes)}",
        why=f"the least it reaches on this trace is {reached_bytes} bytes",
        remedy="allow more, or take another policy",
        required_bytes=reached_bytes,
    )


@dataclass(frozen=True, slots=True)
class Times:
    """The times at which ops begin and end without stalls, counted on over the iteration's end; microseconds."""

    begin_us: tuple[float, ...]
    total_us: float

    @classmethod
    def of(cls, trace: Trace) -> Times:
        """Return the times of `trace`."""
        ends = list(accumulate((op.duration_us for op in trace.ops), initial=0.0))
        return cls(tuple(ends[:-1]), ends[-1])

    def begin(self, op: int) -> float:
        """Return when op `op` begins."""
        round_, within = divmod(op, len(self.begin_us))
        return round_ * self.total_us + self.begin_us[within]

    def first_from(self, us: float, low: int, high: int) -> int:
        """Return the first op of [low, high] that begins at or after `us`, or `high`."""
        return low + bisect_left(range(low, high), us, key=self.begin)

    def last_until(self, us: float, low: int, high: int) -> int:
        """Return the last op of [low, high] that begins at or before `us`, or `low`."""
        at = self.first_from(us, low, high)
        return at if self.begin(at) <= us else max(at - 1, low)


def overlapped(trace: Trace, machine: Machine, times: Times, gap: Gap) -> Swap:
    """Return the swap that leaves at once, is gone when its copy alone would be, and comes back just in time."""
    end = end_of(trace, gap)
    copied = trace.storages[gap.storage].copied_bytes
    gone_us = times.begin(gap.after + 1) + machine.out.copy_us(copied)
    free_by = times.first_from(gone_us, gap.after + 1, end)
    back_us = times.begin(end) - machine.into.copy_us(copied)
    return swap_of(trace, gap, free_by, max(times.last_until(back_us, gap.after + 1, end), free_by))


def from_forward_to_backward(trace: Trace) -> list[Gap]:
    """Return the gaps from a last use in the forward part to the first in the backward part, by their first op."""
    phases = [op.phase for op in trace.ops]
    found = [
        gap
        for gap in all_gaps(trace)
        if gap.is_inner and phases[gap.after] is Phase.FORWARD and phases[gap.before] is Phase.BACKWARD
    ]
    return sorted(found, key=lambda gap: (gap.after, gap.storage))


def is_convolution(name: str) -> bool:
    """Whether an op of this name is a convolution, forward or backward."""
    return "conv" in name.lower()

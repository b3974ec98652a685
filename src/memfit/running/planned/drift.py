"""The link as it is now beside the one that a plan was made for: whether another plan would do better."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.machine import Machine
from memfit.running.planned.engine_plan import CompressedPlan

_STALL_SHARE = 0.005  # of an iteration, beyond what was foreseen: then the link is not as assumed
_STALLED = 3  # iterations in a row
_FASTER = 5  # likewise: a plan that is right is in less of a hurry
_WORTH = 0.005  # of the computation: what a plan adds less than, a faster link does not save
_ALIKE = 0.1  # links whose speeds differ by less: another plan would not be better
_LARGE = 1 << 20  # bytes, of a copy whose time tells a link's speed


@dataclass
class Drift:
    """The iterations in a row that spoke for another plan.

    After each plan that was made for such a reason (`revisions`) it takes four times as many, that are further off:
    machines are not steady, and a plan costs the time of some iterations.
    """

    stalled: int = 0  # they waited for copies longer than was foreseen
    faster: int = 0  # copies took less time than was foreseen, and the plan adds time

    def note_stalls(self, plan: CompressedPlan, stall_ns: int, revisions: int) -> bool:
        """Note an iteration's wait for copies; return whether that is worth another plan."""
        if plan.compute_us is None:
            return False
        excess_us = stall_ns / 1000 - plan.stall_us
        self.stalled = self.stalled + 1 if excess_us > _STALL_SHARE * 10**revisions * plan.compute_us else 0
        if self.stalled < _STALLED << 2 * revisions:
            return False
        self.stalled = 0
        return True

    def note_link(self, plan: CompressedPlan, link: Machine, revisions: int) -> bool:
        """Note the link's speed after an iteration; return whether a plan for it would save time."""
        self.faster = self.faster + 1 if is_faster(link, plan.machine, _ALIKE * 2**revisions) else 0
        if self.faster < _FASTER << 2 * revisions:
            return False
        self.faster = 0
        return True


def may_gain(plan: CompressedPlan) -> bool:
    """Return whether `plan` has waits or re-runs, which a faster link would save, or ops that take longer."""
    return plan.compute_us is not None and not plan.is_given and plan.overhead > _WORTH


def alike(a: Machine, b: Machine | None) -> bool:
    """Return whether a plan for one does for the other."""
    if b is None:
        return False
    pairs = ((a.out, b.out), (a.into, b.into))
    return all(abs(x.copy_us(_LARGE) / y.copy_us(_LARGE) - 1) < _ALIKE for x, y in pairs)


def is_faster(now: Machine, then: Machine | None, by: float = _ALIKE) -> bool:
    """Return whether bytes go out and come back in so much less time that another plan may be better."""
    return then is not None and (1 + by) * _both_ways_us(now) < _both_ways_us(then)


def _both_ways_us(machine: Machine) -> float:
    return machine.out.copy_us(_LARGE) + machine.into.copy_us(_LARGE)

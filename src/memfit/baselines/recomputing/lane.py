"""The copy engines as calendars: which times are taken, by copies that repeat with the iteration."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from memfit.baselines.policies.policy import Times
from memfit.ir import Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import end_of, swap_of
from memfit.planning.lifetimes import Gap


class Lane:
    """The copies of one direction; times are microseconds, and those of the next iteration count on."""

    def __init__(self, period_us: float) -> None:
        self._period_us = period_us
        self._taken: list[tuple[float, float]] = []

    def earliest(self, us: float, length_us: float) -> float:
        """Return the first moment from `us` on at which a copy of this length has the lane to itself."""
        at = max(bisect_right(self._taken, (us, float("inf"))) - 1, 0)
        for begin, end in self._taken[at:]:
            if us + length_us <= begin:
                break
            us = max(us, end)
        return us

    def latest(self, us: float, length_us: float) -> float:
        """Return the last moment from which a copy of this length has the lane to itself until `us` at the latest."""
        for begin, end in reversed(self._taken[: bisect_left(self._taken, (us, us))]):
            if us - length_us >= end:
                break
            us = min(us, begin)
        return us - length_us

    def take(self, begin_us: float, length_us: float) -> None:
        """Take the lane for a copy, in each of the iterations around."""
        for shift in (-self._period_us, 0.0, self._period_us):
            insort(self._taken, (begin_us + shift, begin_us + shift + length_us))


class Lanes:
    """Both directions, with the copies of swaps that hide: each as soon, or as late, as it has its lane to itself."""

    def __init__(self, trace: Trace, machine: Machine, times: Times) -> None:
        self.trace, self.machine, self.times = trace, machine, times
        self._out, self._into = Lane(times.total_us), Lane(times.total_us)

    def hidden(self, gap: Gap) -> Swap | None:
        """Return the swap of `gap` beside the ops and the copies so far; None if its copies do not both hide."""
        gone_us, back_us = self._copies(gap)
        end = end_of(self.trace, gap)
        free_by = self.times.first_from(gone_us + self.machine.out.copy_us(gap.size_bytes), gap.after + 1, end)
        in_start = self.times.last_until(back_us, gap.after + 1, end)
        return swap_of(self.trace, gap, free_by, in_start) if free_by < in_start else None

    def waited_us(self, gap: Gap) -> float:
        """Return the microseconds that ops wait for a swap of `gap` with nothing beside its copies."""
        gone_us, back_us = self._copies(gap)
        out_us = gone_us + self.machine.out.copy_us(gap.size_bytes) - self.times.begin(gap.after + 1)
        return out_us + self.times.begin(end_of(self.trace, gap)) - back_us

    def take(self, gap: Gap) -> None:
        """Take both lanes for the swap of `gap`."""
        gone_us, back_us = self._copies(gap)
        self._out.take(gone_us, self.machine.out.copy_us(gap.size_bytes))
        self._into.take(back_us, self.machine.into.copy_us(gap.size_bytes))

    def _copies(self, gap: Gap) -> tuple[float, float]:
        """Return when the copies begin."""
        end_us = self.times.begin(end_of(self.trace, gap))
        gone_us = self._out.earliest(self.times.begin(gap.after + 1), self.machine.out.copy_us(gap.size_bytes))
        return gone_us, self._into.latest(end_us, self.machine.into.copy_us(gap.size_bytes))

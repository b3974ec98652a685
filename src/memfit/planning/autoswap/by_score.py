"""AutoSwap's choice and schedule by a score (arXiv 1903.06631), as swaps of a trace.

The trace is laid out three times, so that a gap may run over the end of the iteration. What the static timeline decides
becomes swaps, and is then judged like every other plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.ir import Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates, end_of, swap_of
from memfit.planning.autoswap.published import Absence, PaperTimes, Scheduled, aoa, doa, schedule, select, swdoa, wdoa
from memfit.planning.lifetimes import Gap
from memfit.simulate import load_bytes

LEAST_BYTES = 1 << 20
"""The published floor of a candidate."""
SCORES = ("aoa", "doa", "wdoa", "swdoa")


@dataclass(frozen=True, slots=True, eq=False)
class ByScore:
    """A trace, a machine and a budget, ready to be planned by any score of the gaps that straddle the peak."""

    trace: Trace
    machine: Machine
    budget_bytes: int
    events: PaperTimes
    gaps: list[Gap]
    absences: list[Absence]

    @classmethod
    def of(cls, trace: Trace, machine: Machine, budget_bytes: int) -> ByScore:
        """Return the problem with its candidates, in the order of `scores`."""
        peak = len(trace.ops) + int(load_bytes(trace).argmax())
        floor = _floor(trace)
        gaps = [gap for gap in candidates(trace, ANY_GAP) if gap.size_bytes >= floor]
        absences = [a for index, gap in enumerate(gaps) for a in _straddling(trace, gap, index, peak)]
        return cls(trace, machine, budget_bytes, _events(trace), gaps, absences)

    def scores(self, name: str) -> list[float]:
        """Return the score of `SCORES` of this name for each candidate."""
        if name in ("wdoa", "swdoa"):
            weighted = wdoa(self.events, self.absences, self.budget_bytes)
            return weighted if name == "wdoa" else swdoa(self.events, self.absences)
        return (aoa if name == "aoa" else doa)(self.events, self.absences, self.machine)

    def static_stall_us(self, scores: Sequence[float]) -> float:
        """Return the cost of the copies on the static timeline."""
        return sum(one.stall_us for one in self._scheduled(scores))

    def swaps(self, scores: Sequence[float]) -> list[Swap]:
        """Return the swaps of the candidates of the highest scores; the budget may still be passed."""
        swaps = [self._swap(one) for one in self._scheduled(scores)]
        return sorted(
            (swap for swap in swaps if swap.free_by < swap.in_start),
            key=lambda swap: (swap.out_after, swap.in_before, swap.storage),
        )

    def _scheduled(self, scores: Sequence[float]) -> list[Scheduled]:
        chosen = select(self.events, self.absences, scores, self.budget_bytes)
        return schedule(self.events, chosen, self.machine, self.budget_bytes)

    def _swap(self, one: Scheduled) -> Swap:
        gap = self.gaps[one.absence.tag]
        shift = one.absence.after - gap.after
        end = end_of(self.trace, gap)
        free_by = min(max(one.gone + 1 - shift, gap.after + 1), end)
        return swap_of(self.trace, gap, free_by, min(max(one.back - shift, free_by), end))


def _floor(trace: Trace) -> int:
    """Return the published floor, or less where the peak itself is small: 1 MiB of the 650 MB it was meant for."""
    return min(LEAST_BYTES, int(load_bytes(trace).max()) // 600)


def _events(trace: Trace) -> PaperTimes:
    count = len(trace.ops)
    ends = np.cumsum(np.tile([op.duration_us for op in trace.ops], 3))
    begins = np.concatenate(([0.0], ends[:-1]))
    return PaperTimes(ends, begins, np.tile(load_bytes(trace), 3), count, 2 * count)


def _straddling(trace: Trace, gap: Gap, tag: int, peak: int) -> list[Absence]:
    count = len(trace.ops)
    spans = [(gap.after + shift, end_of(trace, gap) + shift) for shift in (0, count)]
    return [Absence(after, before, gap.size_bytes, tag) for after, before in spans if after < peak < before]

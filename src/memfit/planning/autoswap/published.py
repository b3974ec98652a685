"""AutoSwap's scores, selection and static timeline as published (arXiv 1903.06631), on any row of events.

An event is one use of a block. A candidate is the gap between two uses of one block that straddles the peak. The
timeline is static: stalls are summed and delay nothing. Bytes, microseconds, and indices into the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Float64Array, Int64Array
from memfit.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class PaperTimes:
    """Three iterations of events; the limit has to hold in the middle one, events [begin, end).

    A copy out may begin at `ready_us` of its event, a copy in has to end by `due_us` of its.
    """

    ready_us: Float64Array
    due_us: Float64Array
    load_bytes: Int64Array
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Absence:
    """The block may be away between events `after` and `before`; `tag` is the caller's."""

    after: int
    before: int
    size_bytes: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The bytes are away from event `gone` (excluded) to event `back`; `stall_us` is what its copies cost."""

    absence: Absence
    gone: int
    back: int
    stall_us: float


Scores = Sequence[float]


def doa(events: PaperTimes, absences: Sequence[Absence], machine: Machine, *, count_in: bool = True) -> list[float]:
    """Return each duration of absence: the time between the uses less that of the copies (`count_in`: both)."""
    return [
        float(events.due_us[a.before] - events.ready_us[a.after])
        - machine.out.copy_us(a.size_bytes)
        - (machine.into.copy_us(a.size_bytes) if count_in else 0.0)
        for a in absences
    ]


def aoa(events: PaperTimes, absences: Sequence[Absence], machine: Machine, *, count_in: bool = True) -> list[float]:
    """Return each area of absence: duration times bytes, or divided by them where it is negative."""
    durations = doa(events, absences, machine, count_in=count_in)
    return [d * a.size_bytes if d >= 0 else d / a.size_bytes for d, a in zip(durations, absences, strict=True)]


def wdoa(events: PaperTimes, absences: Sequence[Absence], limit_bytes: int) -> list[float]:
    """Return, for each absence, the load over the limit summed over its events."""
    over = np.concatenate(([0], np.cumsum(np.maximum(events.load_bytes - limit_bytes, 0))))
    return [float(over[a.before] - over[a.after]) for a in absences]


def swdoa(events: PaperTimes, absences: Sequence[Absence]) -> list[float]:
    """Return scores in the greedy order of the largest remaining load over the absence, each taken off in turn."""
    after = np.array([a.after for a in absences], dtype=np.int64)
    before = np.array([a.before for a in absences], dtype=np.int64)
    sums = np.concatenate(([0], np.cumsum(events.load_bytes)))
    left = (sums[before] - sums[after]).astype(np.float64)
    scores = [0.0] * len(absences)
    for rank in range(len(absences), 0, -1):
        best = int(left.argmax())
        scores[best], left[best] = float(rank), -np.inf
        shared = np.minimum(before, before[best]) - np.maximum(after, after[best])
        left -= absences[best].size_bytes * np.maximum(shared, 0)
    return scores


def select(events: PaperTimes, absences: Sequence[Absence], scores: Scores, limit_bytes: int) -> list[Absence]:
    """Return the absences of the highest scores until the load fits the limit (or all of them)."""
    load = events.load_bytes.copy()
    chosen: list[Absence] = []
    for index in sorted(range(len(absences)), key=lambda i: -scores[i]):
        if load[events.begin : events.end].max() <= limit_bytes:
            break
        absence = absences[index]
        load[absence.after : absence.before] -= absence.size_bytes
        chosen.append(absence)
    return chosen


def schedule(
    events: PaperTimes, chosen: Sequence[Absence], machine: Machine, limit_bytes: int, *, wait_for_room: bool = True
) -> list[Scheduled]:
    """Return when each copy of `chosen` is made: out by first use, in by last use, one at a time each way.

    With `wait_for_room` a copy in begins after the last event at which its bytes would pass the limit, as the paper
    says. Its published figures agree with a check of the load without the copies in, which then never waits.
    """
    load = events.load_bytes.copy()
    gone = _copy_out(events, chosen, machine, limit_bytes, load)
    return _copy_in(events, gone, machine, limit_bytes, load, wait_for_room)


def _copy_out(
    events: PaperTimes, chosen: Sequence[Absence], machine: Machine, limit_bytes: int, load: Int64Array
) -> list[Scheduled]:
    scheduled, previous = [], -1
    for absence in sorted(chosen, key=lambda a: a.after):
        start = max(absence.after, previous)
        end_us = events.ready_us[start] + machine.out.copy_us(absence.size_bytes)
        end = min(int(np.searchsorted(events.ready_us, end_us)), absence.before - 1)
        load[end + 1 : absence.before] -= absence.size_bytes
        stall_us = 0.0
        over = np.flatnonzero(load[events.begin : end + 1] > limit_bytes)
        if len(over):
            first = events.begin + int(over[0])
            load[first : end + 1] -= absence.size_bytes
            stall_us = float(end_us - events.ready_us[first - 1])
            end = first - 1
        scheduled.append(Scheduled(absence, end, absence.before, stall_us))
        previous = end
    return scheduled


def _copy_in(
    events: PaperTimes,
    gone: Sequence[Scheduled],
    machine: Machine,
    limit_bytes: int,
    load: Int64Array,
    wait_for_room: bool,
) -> list[Scheduled]:
    scheduled, previous = [], len(events.due_us)
    for one in sorted(gone, key=lambda s: -s.absence.before):
        absence = one.absence
        due = min(absence.before, previous)
        start_us = events.due_us[due] - machine.into.copy_us(absence.size_bytes)
        start = max(int(np.searchsorted(events.due_us, start_us, side="right")) - 1, absence.after)
        load[start : absence.before] += absence.size_bytes
        stall_us = one.stall_us
        over = np.flatnonzero(load[start : absence.before] > limit_bytes)
        if wait_for_room and len(over):
            last = start + int(over[-1])
            load[start : last + 1] -= absence.size_bytes
            stall_us += float(events.due_us[last] - events.due_us[start])
            start = last + 1
        scheduled.append(Scheduled(absence, one.gone, start, stall_us))
        previous = start
    return scheduled

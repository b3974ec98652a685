"""AutoSwap's scores, selection and static timeline as published (arXiv 1903.06631), on any row of events.

An event is one use of a block. A candidate is the gap between two uses of one block that straddles the peak. The
timeline is static: stalls are summed and delay nothing. Bytes, microseconds, and indices into the columns.

Everything takes time near linear in events and candidates. Only `swdoa` is not published so for very many of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit import _native
from memfit.arrays import Float64Array, Int64Array
from memfit.machine import Machine

_FEW = 8192  # candidates of which each is scored after every pick
_PICKS = 1024  # of many, in which all are scored anew


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
    """Return scores in the greedy order of the largest remaining load over the absence, each taken off in turn.

    Of more than 8,192 absences several are taken off at a time, a thousandth of them, the largest first.
    """
    after, before, sizes = _columns(absences)
    load, count = events.load_bytes.copy(), len(absences)
    scores = np.zeros(count)
    at_once = 1 if count <= _FEW else -(-count // _PICKS)
    left = _sums_over(load, after, before).astype(np.float64)
    for rank in range(count, 0, -at_once):
        best = _largest(left, min(at_once, rank))
        scores[best] = np.arange(rank, rank - len(best), -1)
        if at_once == 1:
            one = int(best[0])
            shared = np.minimum(before, before[one]) - np.maximum(after, after[one])
            left -= sizes[one] * np.maximum(shared, 0)
        else:
            load = load - _sum_of(after[best], before[best], sizes[best], len(load))
            left = np.where(scores > 0, -np.inf, _sums_over(load, after, before))
        left[best] = -np.inf
    found: list[float] = scores.tolist()
    return found


def _columns(absences: Sequence[Absence]) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the events after and before each absence, and its bytes."""
    rows = np.array([(a.after, a.before, a.size_bytes) for a in absences], dtype=np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _sums_over(load: Int64Array, after: Int64Array, before: Int64Array) -> Int64Array:
    """Return the load summed over the events of each absence."""
    sums = np.concatenate(([0], np.cumsum(load)))
    over: Int64Array = sums[before] - sums[after]
    return over


def _sum_of(after: Int64Array, before: Int64Array, sizes: Int64Array, events: int) -> Int64Array:
    """Return the bytes that absences take off the load of each event."""
    change = np.zeros(events + 1, dtype=np.int64)
    np.add.at(change, after, sizes)
    np.subtract.at(change, before, sizes)
    return np.cumsum(change)[:-1]


def _largest(values: Float64Array, count: int) -> Int64Array:
    """Return where the `count` largest values are, the largest first, and of equal ones the first."""
    if count == 1:
        return np.array([values.argmax()])
    some = np.sort(np.argpartition(values, -count)[-count:])
    return some[np.argsort(-values[some], kind="stable")]


def select(events: PaperTimes, absences: Sequence[Absence], scores: Scores, limit_bytes: int) -> list[Absence]:
    """Return the absences of the highest scores until the load fits the limit (or all of them)."""
    order = sorted(range(len(absences)), key=lambda i: -scores[i])
    after, before, sizes = (column[order] for column in _columns(absences))

    def fits(count: int) -> bool:
        load = events.load_bytes - _sum_of(after[:count], before[:count], sizes[:count], len(events.load_bytes))
        return bool(load[events.begin : events.end].max() <= limit_bytes)

    return [absences[index] for index in order[: bisect_left(range(len(order)), True, key=fits)]]


def schedule(
    events: PaperTimes, chosen: Sequence[Absence], machine: Machine, limit_bytes: int, *, wait_for_room: bool = True
) -> list[Scheduled]:
    """Return when each copy of `chosen` is made: out by first use, in by last use, one at a time each way.

    With `wait_for_room` a copy in begins after the last event at which its bytes would pass the limit, as the paper
    says. Its published figures agree with a check of the load without the copies in, which then never waits.
    """
    room = _native.Headroom(limit_bytes - events.load_bytes)
    gone = _copy_out(events, chosen, machine, room)
    return _copy_in(events, gone, machine, room, wait_for_room)


def _copy_out(
    events: PaperTimes, chosen: Sequence[Absence], machine: Machine, room: _native.Headroom
) -> list[Scheduled]:
    scheduled, previous = [], -1
    for absence in sorted(chosen, key=lambda a: a.after):
        start = max(absence.after, previous)
        end_us = events.ready_us[start] + machine.out.copy_us(absence.size_bytes)
        end = min(int(np.searchsorted(events.ready_us, end_us)), absence.before - 1)
        room.add(end + 1, absence.before, absence.size_bytes)
        stall_us = 0.0
        first = room.first_below(events.begin, end + 1, 0)
        if first >= 0:
            room.add(first, end + 1, absence.size_bytes)
            stall_us = float(end_us - events.ready_us[first - 1])
            end = first - 1
        scheduled.append(Scheduled(absence, end, absence.before, stall_us))
        previous = end
    return scheduled


def _copy_in(
    events: PaperTimes, gone: Sequence[Scheduled], machine: Machine, room: _native.Headroom, wait_for_room: bool
) -> list[Scheduled]:
    scheduled, previous = [], len(events.due_us)
    for one in sorted(gone, key=lambda s: -s.absence.before):
        absence = one.absence
        due = min(absence.before, previous)
        start_us = events.due_us[due] - machine.into.copy_us(absence.size_bytes)
        start = max(int(np.searchsorted(events.due_us, start_us, side="right")) - 1, absence.after)
        room.add(start, absence.before, -absence.size_bytes)
        stall_us = one.stall_us
        last = room.last_below(start, absence.before, 0) if wait_for_room else -1
        if last >= 0:
            room.add(start, last + 1, absence.size_bytes)
            stall_us += float(events.due_us[last] - events.due_us[start])
            start = last + 1
        scheduled.append(Scheduled(absence, one.gone, start, stall_us))
        previous = start
    return scheduled

"""What the ops of an iteration take under a plan, from iterations that ran by it.

A recorded iteration ran without one: what left was brought back on demand, caches were colder, and an op that runs
again was timed as the program runs it. Where iterations take another time than was foreseen, their ops are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Timeline
from memfit.running.planned.recorded import Recorded

_OFF = 0.03  # of what was foreseen: an iteration that takes so much more or less counts
_FAR_OFF = 0.5  # likewise, once the plan has been made anew and another one would save nothing
_IN_A_ROW = 5  # such iterations, all longer or all shorter
_SAMPLES = 5  # iterations whose ops are timed
_MOST = 4 * _SAMPLES  # iterations in which as many are to be found that ran as planned

Microseconds = NDArray[np.float64]


@dataclass
class Pace:
    """The iterations in a row that took another time than their plan foresaw.

    After each plan that was made anew (`revisions`) it takes four times as many, twice as far off: machines are not
    steady.
    """

    slower: int = 0
    faster: int = 0
    _before: tuple[int, int] | None = None  # the iterations that were known to have ended, and their time

    def note(self, foreseen_us: float, ended: int, took_ns: int, revisions: int, *, gains: bool) -> bool:
        """Note that `ended` iterations are known to have taken `took_ns`; return whether to time the next ones' ops.

        Their plan was made anew `revisions` times, and another one may be faster if it `gains`.
        """
        before = self._before
        if before is None or ended > before[0]:
            self._before = ended, took_ns
        if before is None or ended == before[0]:
            return False
        ratio = (took_ns - before[1]) / (ended - before[0]) / 1000 / foreseen_us
        off = max(min(_OFF * 2**revisions, 1.0), _FAR_OFF if revisions and not gains else 0.0)
        self.slower = self.slower + 1 if ratio > 1 + off else 0
        self.faster = self.faster + 1 if ratio < 1 - off else 0
        if max(self.slower, self.faster) < _IN_A_ROW << 2 * revisions:
            return False
        self.slower = self.faster = 0
        return True

    def skip(self) -> None:
        """Note that an iteration has ended whose time says nothing."""
        self.slower = self.faster = 0
        self._before = None


@dataclass
class Timing:
    """The times of ops in the iterations that are being timed, one array for each that ran as planned."""

    taken_us: list[Microseconds] = field(default_factory=list)
    others: int = 0  # that did not

    @property
    def is_enough(self) -> bool:
        """Whether no more iterations are to be timed."""
        return len(self.taken_us) >= _SAMPLES or len(self.taken_us) + self.others >= _MOST

    def add(self, iteration: Timeline | None) -> bool:
        """Add an iteration, without its waits, or one that did not run as planned; return whether these are enough."""
        if iteration is None:
            self.others += 1
        else:
            self.taken_us.append(np.subtract(iteration.end_us, iteration.start_us))
        return self.is_enough

    def result(self, repeats: Sequence[int]) -> OpTimes | None:
        """Return the times; None if no iteration ran as planned.

        `repeats`: for each op 1 more than the one that it repeats, 0 for one of the program's own.
        Each op has its median, and all together the median of the iterations: medians alone leave out what is rare in
        each op and happens in every iteration.
        """
        if not self.taken_us:
            return None
        taken = np.stack(self.taken_us)
        median_us = np.median(taken, axis=0)
        median_us *= np.median(taken.sum(axis=1)) / max(median_us.sum(), 1e-9)
        repeated = np.asarray(repeats or np.zeros(len(median_us)), dtype=np.int64) - 1
        own = repeated < 0
        number = np.cumsum(own) - 1  # of the program's own ops, among themselves
        return OpTimes(median_us[own], number[repeated[~own]], median_us[~own])


@dataclass(frozen=True, eq=False)
class OpTimes:
    """Microseconds of the ops of a recorded iteration under a plan.

    Attributes:
        own_us: Of each op, with what Python does until the next one, and without waits.
        again: The ops that ran again, by their numbers in the recorded iteration; one may be there several times.
        again_us: Of each of them.
    """

    own_us: Microseconds
    again: NDArray[np.int64]
    again_us: Microseconds

    @property
    def size_bytes(self) -> int:
        """The size of the arrays."""
        return self.own_us.nbytes + self.again.nbytes + self.again_us.nbytes

    def applied_to(self, recorded: Recorded) -> Recorded:
        """Return the recorded iteration with these times.

        An op that did not run again would take the time recorded, changed as that of all ops has, and as much beside it
        as those that did run again.
        """
        trace = recorded.trace
        own_us = np.array([op.duration_us for op in trace.ops])
        guess_us = np.array(recorded.again_us) * (self.own_us.sum() / max(own_us.sum(), 1e-9))
        if len(self.again):
            guess_us = np.maximum(guess_us + np.median(self.again_us - guess_us[self.again]), 0)
        for op in np.unique(self.again):
            guess_us[op] = np.median(self.again_us[self.again == op])
        ops = tuple(replace(op, duration_us=us) for op, us in zip(trace.ops, self.own_us.tolist(), strict=True))
        return replace(recorded, trace=replace(trace, ops=ops), again_us=tuple(guess_us.tolist()))

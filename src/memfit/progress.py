"""How long memfit's own work has taken and still takes: a line on a terminal, and nothing elsewhere.

Searches have their efforts in seconds, so that it is known beforehand how much there is to do. Whoever begins such work
says how much it is (`working`); searches say what they have done (`counted`, `part`), to nobody if nobody asked.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from memfit.ranks import speaks_for_all
from memfit.terminal import line_on

_EVERY = 0.5  # seconds between two lines
_JOINED = 1.0  # seconds: the thread may be writing to a terminal that is stopped
_TRUSTED = 0.1  # of the work: so much counts as done at the foreseen pace, whatever the first of it took


class Work:
    """Work of `expected` seconds, and how much of it is done."""

    def __init__(self, what: str, expected: float) -> None:
        self._what = what
        self._expected = expected
        self._done = 0.0
        self._until = expected  # the end of the part that is under way
        self._took = 0.0  # seconds until the last of it was done
        self._begun = 0.0  # of tasks that run beside each other: expected seconds of those that have begun
        self._began = time.monotonic()

    @property
    def left(self) -> float:
        """The seconds that are left, if the rest goes as what is done did.

        Tasks that have begun and are late show that the others will be, too.
        """
        trusted = _TRUSTED * self._expected
        pace = (self._took + trusted) / max(self._done + trusted, 1e-9)
        left = (self._expected - self._done) * pace - (self._elapsed - self._took)
        late = (self._expected - self._begun) * self._elapsed / self._begun if self._begun else 0.0
        return max(left, late, 0.0)

    def line(self) -> str:
        """Return the line for a person."""
        return f"{self._what} | {clock(self._elapsed)}, {about(self.left)}"

    def spend(self, seconds: float) -> None:
        """Note that so many of the expected seconds are done, but no more than those of the part under way."""
        self._reach(min(self._done + seconds, self._until))

    def begin(self, seconds: float) -> None:
        """Note that a task of so many of the expected seconds has begun, beside others."""
        self._begun = min(self._begun + seconds, self._expected)

    @contextmanager
    def part(self, expected: float) -> Iterator[None]:
        """Take what is inside for so many of the expected seconds; at its end they are done, however many it had."""
        before, end = self._until, min(self._done + expected, self._until)
        self._until = end
        try:
            yield
        finally:
            self._until = before
            self._reach(end)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _reach(self, done: float) -> None:
        self._done, self._took = done, self._elapsed


_under_way: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def working(what: str, expected: float) -> Iterator[None]:
    """Show how long `what`, which is expected to take so many seconds, has taken and still takes."""
    work = Work(what, expected)
    token = _under_way.set(work)
    try:
        with shown(work.line):
            yield
    finally:
        _under_way.reset(token)


def under_way() -> Work:
    """Return the work under way; one that nobody sees if there is none."""
    return _under_way.get() or Work("", 0.0)


@contextmanager
def part(expected: float) -> Iterator[None]:
    """Take what is inside for so many seconds of the work under way, if there is one."""
    with under_way().part(expected):
        yield


def counted(efforts: Iterable[float]) -> Iterator[float]:
    """Yield `efforts` in seconds, each of which is done when the next is asked for."""
    for effort in efforts:
        yield effort
        under_way().spend(effort)


@contextmanager
def shown(text: Callable[[], str]) -> Iterator[None]:
    """Show `text()` twice a second, for as long as this is open, if standard error is a terminal."""
    line = line_on(sys.stderr) if speaks_for_all() else None  # ranks would write over each other's
    if line is None:
        yield
        return
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_EVERY):
            line.show(text())

    thread = threading.Thread(target=run, name="memfit progress", daemon=True)
    with contextlib.suppress(RuntimeError):  # the system has no thread left
        thread.start()
    try:
        with line.beside(sys.stdout, sys.stderr):
            yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join(_JOINED)
        line.close()


def about(left: float) -> str:
    """Return the time that is left, for people."""
    return f"about {clock(left)} left" if left >= 1 else "nearly done"


def clock(seconds: float) -> str:
    """Return a duration as a clock shows it: "0:07", "12:30", "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

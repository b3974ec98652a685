"""When plans are made in a run of few steps: each is waited for, and none comes so late that nothing tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from memfit.running.planned.making import Making
from memfit.running.planned.planner import Planner


class VirtualClock(Protocol):
    """A host whose time is modelled."""

    def count(self, what: str) -> int:
        """Return the nanoseconds until `now`."""

    def host_takes(self, seconds: float) -> None:
        """Let the host do something else for so long."""

    def wait_until(self, ns: int) -> None:
        """Let the host wait until that moment."""


def wait_for_plans() -> None:
    """Let this process's training wait for every plan."""
    done = Making.done
    Making.done = lambda self, timeout=0.0: done(self, None)  # type: ignore[method-assign]


def count_plans(clock: VirtualClock, factor: float) -> None:
    """Let this process's plans come when `clock` has come as far as they take to make.

    They take `factor` times the seconds of the processor that they take here, beside training; what training's own
    thread does for plans takes it likewise.
    """
    init, done, ended = Making.__init__, Making.done, Planner.iteration_ended

    def timed_init(self: Any, make: Callable[..., Any]) -> None:
        self.asked_ns = clock.count("now")
        self.ready_ns = self.waited_ns = None

        def timed_make(*arguments: Any) -> Any:
            self.begun = time.thread_time()
            try:
                return make(*arguments)
            finally:
                self.ready_ns = until_now(self)
                self.waited_ns = self.waited_ns or self.ready_ns

        init(self, timed_make)

    def until_now(making: Any) -> int:
        taken_s: float = factor * (time.thread_time() - making.begun)
        return int(making.asked_ns + 1e9 * taken_s)

    def passes(until_ns: int | None, timeout: float | None) -> bool:
        """Let the clock come to a moment, if that is no later than `timeout` seconds from now, or else to then."""
        now = clock.count("now")
        if until_ns is None or timeout is None or until_ns <= now + 1e9 * timeout:
            clock.wait_until(until_ns or now)
            return True
        clock.host_takes(timeout)
        return False

    def timed_done(self: Any, timeout: float | None = 0.0) -> bool:
        done(self, None)
        return passes(self.ready_ns, timeout)

    if hasattr(Making, "wait"):  # the version that the clock is calibrated with waits until a plan is made
        longer = Making.takes_longer

        def timed_longer(self: Any) -> None:
            self.waited_ns = until_now(self)
            longer(self)

        def timed_wait(self: Any, timeout: float | None) -> None:
            done(self, None)
            passes(self.waited_ns, timeout)

        Making.takes_longer, Making.wait = timed_longer, timed_wait  # type: ignore[method-assign]

    def timed_end(self: Any, *arguments: Any, **named: Any) -> None:
        begin = time.thread_time()
        ended(self, *arguments, **named)
        clock.host_takes(factor * (time.thread_time() - begin))

    Making.__init__, Making.done = timed_init, timed_done  # type: ignore[method-assign]
    Planner.iteration_ended = timed_end  # type: ignore[method-assign]


def keep_plans() -> None:
    """Let this process's plans stay as they are from here on, whatever links and ops take."""
    from memfit.running.planned.revisions import Revisions

    Revisions.compare = lambda *_: None  # type: ignore[method-assign]

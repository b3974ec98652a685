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
        self.ready_ns = asked_ns = clock.count("now")

        def timed_make(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return make(*arguments)
            finally:
                self.ready_ns = asked_ns + int(1e9 * factor * (time.thread_time() - begin))

        init(self, timed_make)

    def timed_done(self: Any, timeout: float | None = 0.0) -> bool:
        done(self, None)
        now = clock.count("now")
        if timeout is None or self.ready_ns <= now + 1e9 * timeout:
            clock.wait_until(self.ready_ns)
            return True
        clock.host_takes(timeout)
        return False

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

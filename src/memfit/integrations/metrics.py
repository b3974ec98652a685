"""A session's figures as a flat dict of numbers, the same for every library that logs."""

from __future__ import annotations

import time
import warnings

from memfit.errors import UsageError
from memfit.running.session import Session, Stats, active_session

MIB = 1 << 20
LEVELS = ("memfit/budget_mib", "memfit/arena_peak_mib", "memfit/tier_mib", "memfit/planned_iterations")
"""The figures of the moment."""
CHANGES = ("memfit/out_mib", "memfit/in_mib", "memfit/recomputations", "memfit/wait_share")
"""The figures of the time since they were last read."""
IN_A_BAR = ("memfit/arena_peak_mib", "memfit/wait_share")
"""The figures for a progress bar, which has no room for all of them."""


class Meter:
    """Reads a session's figures: levels, and changes since it last read them.

    Arguments:
        session: An active session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = session.stats
        self._read_ns = time.monotonic_ns()

    def read(self) -> dict[str, float]:
        """Return the figures, by the names of `LEVELS` and `CHANGES`."""
        now, now_ns = self._session.stats, time.monotonic_ns()
        changes = _changes(self._before, now, now_ns - self._read_ns)
        self._before, self._read_ns = now, now_ns
        levels = (
            now.budget_bytes / MIB, now.peak_footprint_bytes / MIB, now.tier_used_bytes / MIB,
            float(self._session.planned_iterations),
        )  # fmt: skip
        return dict(zip(LEVELS + CHANGES, levels + changes, strict=True))


def _changes(before: Stats, now: Stats, time_ns: int) -> tuple[float, float, float, float]:
    waited_ns = now.waited_ns - before.waited_ns
    return (
        (now.bytes_out - before.bytes_out) / MIB,
        (now.bytes_in - before.bytes_in) / MIB,
        float(now.recomputations - before.recomputations),
        waited_ns / max(time_ns, 1),
    )


def meter_of(session: Session | None, reporter: str) -> Meter | None:
    """Return a meter of `session`, or of the active one; warn if there is none.

    Arguments:
        session: The session that was passed to the reporter, or None.
        reporter: The name of what will report, for messages.

    Returns:
        The meter, or None: then there is nothing to report, as in a plain run of the same script.

    Raises:
        UsageError: The session that was passed is not the active one.
    """
    active = active_session()
    if session is not None and session is not active:
        raise UsageError(
            f"the session that was passed to {reporter} is not active",
            why="training has to run inside the session's `with` block, and in its process",
            remedy="with session: trainer.train(), or pass no session: the active one is found",
        )
    if active is None:
        nothing = UsageError(
            f"{reporter} has nothing to report: no memfit session is active, and memory has no limit",
            why="a session begins with its `with` block, or with `memfit run`, and a callback begins none",
            remedy='with memfit.session(budget="60%"): ..., around training',
        )
        warnings.warn(str(nothing), stacklevel=3)
        return None
    return Meter(active)

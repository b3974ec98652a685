"""When plans are made in a run of few steps: each is waited for, and none comes so late that nothing tells of it."""

from __future__ import annotations

from memfit.running.planned.making import Making
from memfit.running.planned.revisions import Revisions


def wait_for_plans() -> None:
    """Let this process's training wait for every plan."""
    done = Making.done
    Making.done = lambda self, timeout=0.0: done(self, None)  # type: ignore[method-assign]


def keep_plans() -> None:
    """Let this process's plans stay as they are from here on, whatever links and ops take."""
    Revisions.compare = lambda *_: None  # type: ignore[method-assign]

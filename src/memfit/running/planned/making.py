"""A plan in the making, in a thread beside training."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from memfit.errors import UsageError
from memfit.messages import described
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.given import Refused

_PATIENCE = {"cpu": 2.0, "cuda": 0.0}  # seconds: a GPU makes most of what has left again, meanwhile, in little time
_SWITCH = "MEMFIT_PATIENCE"


def patience(device: str) -> float:
    """Return the seconds that training waits for its first plan before it goes on without.

    It is MEMFIT_PATIENCE, or else 2 on a "cpu" and 0 on "cuda". Raises UsageError if that is not a number of seconds.
    """
    named = os.environ.get(_SWITCH, "").strip()
    try:
        seconds = float(named) if named else _PATIENCE[device]
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(
            f"{_SWITCH} is {named!r}",
            why="it is how many seconds training waits for its first plan before it goes on without",
            remedy="set it to a number from 0 on, or unset it: then it waits for 2 seconds, and on a GPU not at all",
        )
    return min(seconds, threading.TIMEOUT_MAX)


@dataclass(frozen=True)
class Made:
    """The result of making a plan, without one where none was found or the making failed.

    `key` is what it is kept by on disk, "" where it is not; `never` are the storages that an earlier run could not make
    again, and why. `anew` is the plan in force, if there is one, as it is foreseen by what is known now.
    """

    plan: CompressedPlan | None = None
    anew: CompressedPlan | None = None
    refused: Refused | None = None  # the plan that was passed
    key: str = ""
    is_kept: bool = False  # it was kept by an earlier run, or by another rank of this one
    is_shared: bool = False  # by another rank of this one
    claim: str = ""  # other ranks wait until it is settled
    searched: bool = False  # what leaves, and how, was looked for
    failed: str = ""  # an error of the planner's own
    never: Mapping[int, str] = field(default_factory=dict)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let the garbage collector rest, if it is at work."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Making:
    """A plan being made in a thread.

    Where the system has no thread left, or `make` raises anything, training goes on as it did.

    Attributes:
        stop: Set when nobody wants the plan any more.
    """

    def __init__(self, make: Callable[[Making], Made]) -> None:
        self.stop = threading.Event()
        self._made: list[Made] = []
        self._is_long = threading.Event()
        self._make = make
        self._thread = threading.Thread(target=self._run, name="memfit planner")
        self._started = True
        try:
            self._thread.start()
        except RuntimeError:
            self._started = False

    def _run(self) -> None:
        try:
            self._made.append(self._make(self))
        except BaseException as error:  # nobody else could catch it in a thread
            self._made.append(Made(failed=described(error)))
        finally:
            self._is_long.set()

    def takes_longer(self) -> None:
        """Let training go on that waits for the plan: none was found soon, and the search for one goes on."""
        self._is_long.set()

    def wait(self, timeout: float | None) -> None:
        """Wait until it has ended or takes longer, for `timeout` seconds at most (None: however long that takes).

        The garbage collector rests meanwhile: it would go through the planner's many objects again and again.
        """
        with _uncollected():
            if self._started:
                self._is_long.wait(timeout)
            if self._made:
                self.done(None)

    def cancel(self) -> Made:
        """End it as soon as can be, wait until it has, and return what came of it."""
        self.stop.set()
        self.done(None)
        return self.result()

    def done(self, timeout: float | None = 0.0) -> bool:
        """Whether it has ended, within `timeout` seconds (None: however long that takes)."""
        if self._started:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> Made:
        """Return the result."""
        return self._made[0] if self._made else Made()

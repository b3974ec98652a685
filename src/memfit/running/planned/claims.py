"""Claims: which rank of a machine searches for a plan that several want, while the others wait for its file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from memfit.running.engine.plans import ENDING

_LOOKS_EVERY = 0.05  # seconds
_LONGEST = 60.0  # seconds: whoever has waited so long searches for itself

_Found = TypeVar("_Found")


class Claims:
    """The claims of this process, each a locked file in `folder`; the system ends those of a process that dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}  # descriptors
        self._lock = threading.Lock()

    def wait_for(
        self, name: str, look: Callable[[], _Found | None], stop: threading.Event, longest: float = _LONGEST
    ) -> _Found | None:
        """Return what `look` finds once another process has put it there; None if this one is to make it.

        Then `name` is claimed until `release`, unless the wait was too long or `stop` was set.
        """
        until = time.monotonic() + longest
        while True:
            is_claimed = self._take(name)
            if (found := look()) is not None:
                self.release(name)
                return found
            if is_claimed or time.monotonic() > until or stop.wait(_LOOKS_EVERY):
                return None

    def release(self, name: str) -> None:
        """Let others look: what this process makes as `name` is there, or will not be. Nothing, if it has no claim."""
        with self._lock, contextlib.suppress(OSError):
            if (descriptor := self._held.pop(name, None)) is not None:
                self._path(name).unlink(missing_ok=True)
                os.close(descriptor)

    def release_all(self) -> None:
        """Release every claim."""
        for name in [*self._held]:
            self.release(name)

    def _take(self, name: str) -> bool:
        """Return whether `name` is claimed now; so it is where no file can be locked, since nobody can wait there."""
        with self._lock:
            if name in self._held:
                return True
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor = os.open(self._path(name), os.O_RDWR | os.O_CREAT, 0o600)
            except OSError:
                return True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                return not isinstance(error, BlockingIOError)
            self._held[name] = descriptor
            return True

    def _path(self, name: str) -> Path:
        # What a killed process leaves goes as other unfinished files do.
        return self._folder / f".{name}{ENDING}.claim.tmp"

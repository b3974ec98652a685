"""The line that says how a session goes, while it goes: from a thread that reads figures and does nothing else."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from memfit.messages import say
from memfit.running.session.status import Status
from memfit.terminal import Line, line_on

_EVERY, _WINDOW = 0.5, 4  # seconds between two lines on a terminal; rates are of so many of those intervals
_EVERY_PLAIN = 10.0  # seconds between two lines elsewhere, or while a script's own line is not ended
_JOINED = 1.0  # seconds: the thread may be writing to a terminal that is stopped


class Watch:
    """Shows a line from `with` to the block's end: in place on a terminal, otherwise now and then.

    `status` returns how the session stands, or None once it has ended. A forked child shows nothing.
    """

    def __init__(self, status: Callable[[], Status | None]) -> None:
        self._status = status
        self._stop = threading.Event()
        self._owner = os.getpid()
        self._seen: deque[Status] = deque(maxlen=_WINDOW + 1)
        self._told_at = time.monotonic()
        self._contexts = ExitStack()
        self._line: Line | None = None

    def __enter__(self) -> Watch:
        self._line = line_on(sys.stderr)
        self._note()
        if self._line is not None:
            self._contexts.callback(self._line.close)
            self._contexts.enter_context(self._line.beside(sys.stdout, sys.stderr))
        thread = threading.Thread(target=self._run, name="memfit watch", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system has no thread left: it is trained without a line
            thread.start()
            self._contexts.callback(self._end, thread)
            # A thread that waits for the interpreter when that ends is ended where it is, in the engine's code too.
            atexit.register(self._end, thread)
            self._contexts.callback(atexit.unregister, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        with self._contexts:
            pass

    def _end(self, thread: threading.Thread) -> None:
        if os.getpid() != self._owner:  # a forked child has no such thread, which may have held the event's lock
            return
        self._stop.set()
        thread.join(_JOINED)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY if self._line is not None else _EVERY_PLAIN):
            with contextlib.suppress(Exception):  # a line is not worth a run
                self._tell()

    def _note(self) -> Status | None:
        """Take in how the session stands."""
        if (now := self._status()) is not None:
            self._seen.append(now)
        return now

    def _tell(self) -> None:
        now = self._note()
        if now is None:
            return
        if self._line is None:
            say(f"memfit: {now.line(self._seen[-2])}")
        elif self._line.is_free:
            self._line.show(now.line(self._seen[0]))
        elif time.monotonic() - self._told_at >= _EVERY_PLAIN:
            self._told_at = time.monotonic()
            self._line.put(f"memfit: {now.line(self._seen[0])}")

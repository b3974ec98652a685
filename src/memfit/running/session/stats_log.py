"""Statistics that are appended to a file while training goes on, one JSON object a line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict

from memfit.errors import InputError, UsageError
from memfit.files.document import check_folder
from memfit.messages import say
from memfit.running.host import peak_rss_bytes
from memfit.running.session.status import Status


class StatsLog:
    """Appends a line at the end of every `every`th iteration that it is told of.

    A line is written whole or not at all, and is in the file, as the system sees it, when the iteration goes on.
    """

    def __init__(self, path: str | os.PathLike[str], every: int) -> None:
        if every < 1:
            raise UsageError(f"statistics every {every} iterations", why="that is less than one", remedy="every=1")
        check_folder(path)
        self._path = os.path.abspath(path)  # wherever the script goes
        self._every = every
        self._iterations = 0
        self._last: Status | None = None
        self._has_failed = False
        _begin_line(self._path)

    def begin(self, status: Status) -> None:
        """Take `status` for that before the first iteration."""
        self._last = status

    def iteration_ended(self, status: Callable[[], Status]) -> None:
        """Append a line if it is time to. A disk that is full, or a file that is lost, is said once."""
        self._iterations += 1
        if self._iterations % self._every == 0:
            now = status()
            row = _row(now, self._last or now)
            self._last = now
            self._append(json.dumps(row) + "\n")

    def _append(self, line: str) -> None:
        try:
            append(self._path, line.encode())
        except OSError as error:
            if not self._has_failed:
                why = error.strerror or str(error)
                say(f"memfit: warning: statistics could not be appended to {self._path}: {why}; training goes on")
            self._has_failed = True


def append(path: str, data: bytes) -> None:
    """Append `data` to a file, made first if it is not there: all of it, or nothing and an OSError.

    It is opened each time: a script may close descriptors that are not its own, and open others of the same number.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        written = os.write(descriptor, data)
        if written < len(data):
            _take_back(descriptor, written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _take_back(descriptor: int, written: int) -> None:
    """Cut off a part of a line, unless another process has appended since."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if os.fstat(descriptor).st_size == end:
        os.ftruncate(descriptor, end - written)


def _begin_line(path: str) -> None:
    """Make the file, or end a line that lost its end to a power cut. Raises InputError if it cannot be written."""
    cut_short = False
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        cut_short = file.read(1) != b"\n"
    try:
        append(path, b"\n" if cut_short else b"")
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot write {path}", why=why, remedy="choose a writable path") from error


def _row(now: Status, before: Status) -> dict[str, object]:
    about = {"iteration": now.stats.iterations, "seconds": now.seconds, "pid": os.getpid()}
    more = {"plan": now.plan, "planned_iterations": now.planned_iterations,
            "waited_seconds": now.waited_seconds, "peak_rss_bytes": peak_rss_bytes()}  # fmt: skip
    return {**about, **now.since(before), **more, **asdict(now.stats), "fragmentation": now.stats.fragmentation}

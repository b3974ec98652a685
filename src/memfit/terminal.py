"""One line at the bottom of a terminal that is written over and over, and gives way to what others print there.

The line goes straight to a descriptor, past Python's buffers and their locks. All that is known of it is under one
lock, which is free in a forked child: the line is its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 1.0  # seconds: a terminal may be stopped, and a line is not worth a hang
_USUAL_WIDTH = 80

_lock = threading.RLock()  # a signal's handler may print in the midst of a print
_shown: list[Line] = []
"""The line that is on the terminal now, if there is one."""


class Line:
    """The bottom line of the terminal behind `descriptor`, which may be closed meanwhile: this has a copy of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._device = _device_of(self._descriptor)
        self._owner = os.getpid()
        self._length = 0  # of what is on the terminal
        self._begun = False  # others have printed a part of a line
        self._rewritten = False  # and go back to its beginning, as bars do

    @property
    def is_free(self) -> bool:
        """Whether nobody else has begun a line and not ended it."""
        return not self._begun

    def show(self, text: str) -> None:
        """Put `text` there, as far as it fits, in place of what was there; not while another's line is begun."""
        with _turn():
            if not self.is_free or not self._is_ours():
                return
            width = self._width() - 1
            cut = text[:width]
            self._write(f"\r{cut.ljust(min(self._length, width))}\r{cut}")
            self._length = len(cut)
            _shown[:] = [self]

    def put(self, text: str) -> None:
        """Print `text` as a line of its own, above what another has begun: a bar that is written over goes on below."""
        with _turn():
            if not self._is_ours():
                return
            self.clear()
            over = " " * (self._width() - 1)
            self._write(f"\r{over}\r{text}\n" if self._rewritten else f"\n{text}\n")

    def clear(self) -> None:
        """Take the text away."""
        with _turn():
            if self in _shown:
                if self._is_open():
                    self._write(f"\r{' ' * min(self._length, self._width() - 1)}\r")
                self._length = 0
                _shown.clear()

    def close(self) -> None:
        """Take the text away, and let go of the terminal."""
        self.clear()
        if self._is_open():
            os.close(self._descriptor)

    @contextmanager
    def beside(self, *streams: Any) -> Iterator[None]:
        """Give way to what is printed on those of `streams` that are this terminal, for as long as this is open."""
        mine = {stream: self._giving_way(stream.write) for stream in streams if self._is_same(stream)}
        for stream, write in mine.items():
            stream.write = write
        try:
            yield
        finally:
            for stream, write in mine.items():
                if vars(stream).get("write") is write:  # otherwise somebody has taken it over who goes on to call this
                    del stream.write

    def _giving_way(self, write: Any) -> Any:
        def written(text: str, /) -> int:
            with printing():
                count: int = write(text)
                self._note(text)
                return count

        return written

    def _note(self, text: str) -> None:
        """Learn whether the cursor is within a line after `text`."""
        _, ended, tail = text.rpartition("\n")
        self._begun = bool(tail) or (self._begun and not ended)
        self._rewritten = "\r" in tail or (self._rewritten and not ended)

    def _is_same(self, stream: Any) -> bool:
        """Return whether `stream` leads to this terminal, and takes attributes."""
        try:
            return hasattr(stream, "__dict__") and _device_of(stream.fileno()) == self._device
        except (TypeError, AttributeError, ValueError, OSError):
            return False

    def _is_ours(self) -> bool:
        """Return whether this process, and none in the foreground before it, may write there now."""
        if os.getpid() != self._owner or not self._is_open():
            return False
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it is not the terminal that signals come from
            return True

    def _is_open(self) -> bool:
        """Return whether nobody has closed the descriptor, and perhaps opened another file by it."""
        try:
            return _device_of(self._descriptor) == self._device
        except OSError:
            return False

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._descriptor).columns or _USUAL_WIDTH
        except OSError:
            return _USUAL_WIDTH

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="replace"))


def _device_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_rdev


def line_on(stream: Any) -> Line | None:
    """Return a line on the terminal behind `stream`; None if it is not one, or is closed."""
    try:
        return Line(stream.fileno()) if stream.isatty() else None
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def printing() -> Iterator[None]:
    """Print in this, in one turn, where a line may be shown: it is taken away first."""
    with _turn():
        for line in list(_shown):
            line.clear()
        yield


@contextmanager
def _turn() -> Iterator[None]:
    lock = _lock  # a forked child has another
    mine = lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if mine:
            lock.release()


def _before_fork() -> None:
    _lock.acquire(timeout=_PATIENCE)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # it was not to be had
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _shown.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)  # fmt: skip

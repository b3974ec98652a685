"""Programs on a pseudo-terminal, and what stands on its screen in the end and came by meanwhile."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Screen:
    """The rows of a terminal that knows no more than carriage returns and line feeds."""

    columns: int = 80
    rows: list[str] = field(default_factory=lambda: [""])
    shown: list[str] = field(default_factory=list)
    """The last row each time something was written over it."""
    _at: int = 0

    def feed(self, text: str) -> None:
        for letter in text:
            if letter == "\r":
                self.shown.append(self.rows[-1].rstrip())
                self._at = 0
            elif letter == "\n":
                self.rows.append("")
                self._at = 0
            else:
                if self._at == self.columns:
                    self.feed("\r\n")
                row = self.rows[-1].ljust(self._at)
                self.rows[-1] = row[: self._at] + letter + row[self._at + 1 :]
                self._at += 1

    @property
    def text(self) -> list[str]:
        """What is left on it, row by row."""
        return [row.rstrip() for row in self.rows]


def on_terminal(command: Sequence[str], cwd: Path, columns: int = 80) -> tuple[int, Screen]:
    """Run a command of Python's whose three streams are a terminal; return its exit code and the screen."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    words, streams = [sys.executable, *map(str, command)], {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(words, cwd=cwd, start_new_session=True, **streams)
    os.close(theirs)
    screen = Screen(columns)
    with contextlib.suppress(OSError):  # how a terminal says that nobody has its other end any more
        while data := os.read(ours, 1 << 16):
            screen.feed(data.decode(errors="replace"))
    os.close(ours)
    return process.wait(60), screen

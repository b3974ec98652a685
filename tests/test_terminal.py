"""A line on a terminal is written over and cut, gives way to others, and is nobody's in a forked child."""

from __future__ import annotations

import io
import os
import pty
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from memfit import terminal
from memfit.terminal import Line, line_on
from pseudo_terminal import Screen

pytestmark = pytest.mark.timeout(60)


@dataclass
class Terminal:
    """A terminal, one of Python's streams on it, and a line."""

    ours: int
    stream: io.TextIOWrapper
    line: Line

    def screen(self, columns: int = 20) -> Screen:
        screen = Screen(columns)
        os.set_blocking(self.ours, False)
        try:
            while data := os.read(self.ours, 1 << 16):
                screen.feed(data.decode())
        except BlockingIOError:
            return screen
        return screen


@pytest.fixture
def tty() -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 20))
    stream = io.TextIOWrapper(os.fdopen(theirs, "wb"), line_buffering=True)
    line = line_on(stream)
    assert line is not None
    yield Terminal(ours, stream, line)
    line.close()
    os.close(ours)


def test_the_line_is_written_over_cut_to_the_width_and_taken_away(tty):
    tty.line.show("a line that is much too long for it")
    tty.line.show("a short one")
    assert tty.screen().text == ["a short one"]
    tty.line.show("another that is cut, too")
    assert tty.screen().rows == ["another that is cut"]
    tty.line.close()
    assert tty.screen().text == [""]


def test_lines_that_are_printed_stand_alone_and_the_line_comes_back_below(tty):
    with tty.line.beside(tty.stream, None):
        tty.line.show("live")
        print("printed", 1, file=tty.stream)
        tty.line.show("live")
        with terminal.printing():
            os.write(tty.stream.fileno(), b"said\n")
        tty.line.show("live")
    assert tty.screen().text == ["printed 1", "said", "live"]


def test_a_line_that_is_not_ended_is_left_alone_and_a_bar_goes_on_below(tty):
    with tty.line.beside(tty.stream):
        print("half a", end=" ", file=tty.stream, flush=True)
        tty.line.show("live")
        tty.line.put("told")
        print("line\n\rbar 1", end="", file=tty.stream, flush=True)
        tty.line.show("live")
        tty.line.put("told again")
        print("\rbar 2", end="", file=tty.stream, flush=True)
    assert tty.screen().text == ["half a", "told", "line", "told again", "bar 2"]


def test_a_stream_has_its_own_way_to_write_again_unless_another_has_taken_it_over(tty):
    own = tty.stream.write
    with tty.line.beside(tty.stream):
        assert tty.stream.write != own
    assert tty.stream.write == own
    with tty.line.beside(tty.stream):
        before = tty.stream.write
        tty.stream.write = other = lambda text: before(text.upper())
    assert tty.stream.write is other
    tty.stream.write("still\n")
    assert tty.screen().text == ["STILL", ""]


def test_what_is_no_terminal_or_closed_has_no_line(tmp_path):
    with open(tmp_path / "file", "w") as closed:
        assert line_on(closed) is None
    assert [line_on(stream) for stream in (closed, None, io.StringIO(), object())] == [None] * 4


def test_a_descriptor_that_was_closed_and_is_another_files_now_is_not_written_to(tty, tmp_path):
    tty.line.show("live")
    number = tty.line._descriptor
    with open(tmp_path / "file", "wb") as file:
        os.dup2(file.fileno(), number)
        tty.line.show("live again")
        tty.line.put("told")
        tty.line.close()
        assert os.fstat(number).st_ino == os.fstat(file.fileno()).st_ino  # and it is still open
        os.close(number)
    assert (tmp_path / "file").read_bytes() == b""


def test_a_forked_child_prints_at_once_and_shows_nothing_even_if_a_thread_was_writing(tty):
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with terminal.printing():
            inside.set()
            leave.wait(30)

    tty.line.show("live")
    thread = threading.Thread(target=hold)
    with tty.line.beside(tty.stream):
        thread.start()
        inside.wait(30)
        child = os.fork()  # waits a second for the thread, and no longer
        if child == 0:
            began, nothing_shown = time.monotonic(), not terminal._shown
            tty.line.show("a child's")
            print("child", file=tty.stream)
            os._exit(0 if time.monotonic() - began < 0.5 and nothing_shown else 1)
        leave.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        thread.join()
        tty.line.show("live")
    assert tty.screen().text == ["child", "live"]


def test_a_job_in_the_background_leaves_the_terminal_alone(tty, monkeypatch):
    monkeypatch.setattr(os, "tcgetpgrp", lambda descriptor: os.getpgrp() + 1)
    tty.line.show("live")
    assert tty.screen().text == [""]

"""However a session is entered and left, and whatever signals come meanwhile, nothing of it stays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch.optim import optimizer as optimizers

import memfit
from memfit.running import engine
from memfit.running.session.ended import Ended
from running.plainly import descend
from running.pressure import BUDGET, COUNT, evicted, is_resident, press

pytestmark = [pytest.mark.timeout(120, method="thread"), pytest.mark.filterwarnings("ignore")]


class Rung(Exception):
    """What a signal's handler raises."""


def surroundings() -> tuple[object, ...]:
    """What a session changes of the process."""
    hooks = [len(getattr(optimizers, f"_global_optimizer_{when}_hooks")) for when in ("pre", "post")]
    doors = (torch.Tensor.numpy, torch.Tensor.tolist, torch.UntypedStorage.data_ptr, torch._foreach_add_, torch.save)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)]
    return (*hooks, *doors, *handlers, engine.load().active())


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    engine.load()
    before = surroundings()
    yield
    left = surroundings()
    if engine.load().active():
        engine.load().stop()
    assert left == before


@contextlib.contextmanager
def handled(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def one_session(kept: list[torch.Tensor]) -> None:
    with memfit.session(BUDGET, "ram"):
        kept.append(torch.full((COUNT,), float(len(kept))))
        for tensor in kept:
            tensor.add_(0)


def is_whole(kept: list[torch.Tensor]) -> bool:
    native = engine.load()
    return all(native.block_id(t) == -1 and (t == float(value)).all() for value, t in enumerate(kept))


# --- signals at every line


class Tracer:
    """Calls `at_line` with the number of each line that memfit's own Python runs, in the order they run."""

    def __init__(self, files: tuple[str, ...], at_line: Callable[[int], object]) -> None:
        self._files = files
        self._at_line = at_line
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> object:
        if Path(frame.f_code.co_filename).name not in self._files or "memfit/running" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
            self._at_line(self.lines)
        return self


def traced(files: tuple[str, ...], at_line: Callable[[int], object], span: Callable[[], object]) -> int:
    """Run `span`; return how many lines it had."""
    tracer = Tracer(files, at_line)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        span()
    finally:
        sys.settrace(before)
    return tracer.lines


def rings_at_each_line(files: tuple[str, ...], every: int, rings: int) -> None:
    there = {path.name for path in Path(memfit.__file__).parent.rglob("*.py")}
    assert {*files} <= there, "a file has got another name"

    def ring(number: int, frame: FrameType | None) -> None:
        raise Rung(number)

    def session() -> None:
        with memfit.session(BUDGET, "ram"):
            torch.ones(COUNT)

    before = surroundings()[:-1]
    with handled(signal.SIGUSR1, ring):
        inside = surroundings()
        for first in range(1, traced(files, lambda line: None, session) + 1, every):
            due = range(first, first + rings)

            def at_line(line: int, due: range = due) -> None:
                if line in due:
                    signal.raise_signal(signal.SIGUSR1)

            with pytest.raises(Rung):
                traced(files, at_line, session)
                pytest.fail(f"the signal at line {first} is lost")
            assert surroundings() == inside, first
    assert surroundings()[:-1] == before


@pytest.mark.long
@pytest.mark.parametrize("rings", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_signal_at_any_line_of_a_session_s_begin_or_end_is_raised_and_leaves_nothing(rings):
    rings_at_each_line(("api.py", "active.py", "undisturbed.py", "iterations.py"), 1, rings)


@pytest.mark.slow
@pytest.mark.parametrize("rings", [1, 3])
def test_a_signal_at_any_line_of_whatever_a_session_sets_up_is_raised_and_leaves_nothing(rings):
    files = (
        "api.py",
        "active.py",
        "undisturbed.py",
        "iterations.py",
        "guards.py",
        "chunking.py",
        "planner.py",
        "devices.py",
    )
    rings_at_each_line(files, 7, rings)


# --- signals at any moment


class Rings:
    """Signals by a timer and by another thread, at random moments until told to stop; their handlers raise."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.armed = False
        self.heard = 0

    def ring(self, number: int, frame: FrameType | None) -> None:
        self.heard += 1
        torch.ones(100).add_(1)
        if self.armed and number != signal.SIGUSR1:
            raise (KeyboardInterrupt if number == signal.SIGINT else Rung)

    def around(self, span: Callable[[], object], longest: float) -> None:
        """Run `span` under two signals or more; what their handlers raise ends it, and no more."""
        moment = self._random.uniform(0, longest)
        thread = threading.Thread(target=self._twice, args=[moment])
        thread.start()  # (what its handler raised would find threading's own locks half taken)
        self.armed = True
        try:
            signal.setitimer(
                signal.ITIMER_REAL, self._random.uniform(1e-5, longest), self._random.uniform(1e-4, longest)
            )
            span()
            self.armed = False
        except (KeyboardInterrupt, Rung):
            self.armed = False
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            thread.join()

    def _twice(self, moment: float) -> None:
        time.sleep(moment)
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
            time.sleep(moment * self._random.choice((0, 0, 0.01, 0.1)))


@pytest.mark.long
@pytest.mark.parametrize("sessions", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_signals_at_random_moments_leave_no_session_and_every_bit(sessions, monkeypatch):
    monkeypatch.setattr(
        sys, "unraisablehook", deque(maxlen=0).append
    )  # handlers run in callbacks of weak references, too
    rings, kept = Rings(sessions), []
    span = functools.partial(one_session, kept)
    with handled(signal.SIGINT, rings.ring), handled(signal.SIGALRM, rings.ring), handled(signal.SIGUSR1, rings.ring):
        inside = surroundings()
        started = time.monotonic()
        span()
        longest = 1.3 * (time.monotonic() - started)
        for _ in range(sessions):
            del kept[4:]
            rings.around(span, longest)
            assert surroundings() == inside
            assert is_whole(kept)
    assert rings.heard > sessions


def test_a_signal_that_comes_while_a_session_ends_is_handled_once_when_it_has(monkeypatch):
    heard = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append((engine.load().active(), torch.ones(3).sum().item()))

    session = memfit.session(BUDGET, "ram")
    with handled(signal.SIGUSR1, note), session:
        close = session._running.close

        def ring() -> Ended:
            signal.raise_signal(signal.SIGUSR1)
            time.sleep(0)
            assert not heard
            return close()

        monkeypatch.setattr(session._running, "close", ring)
    assert heard == [(False, 3.0)]


def test_how_the_system_delivers_a_signal_stays_as_it_was():
    """`signal.signal` makes calls end early; who has asked for them to be taken up again keeps that."""
    flags = Path("/proc/self/status")
    with handled(signal.SIGUSR1, lambda *_: None):
        signal.siginterrupt(signal.SIGUSR1, False)
        before = flags.read_text().split("SigCgt")[1].split()[1], action_flags(signal.SIGUSR1)
        with memfit.session(BUDGET, "ram"):
            pass
        assert (flags.read_text().split("SigCgt")[1].split()[1], action_flags(signal.SIGUSR1)) == before


def action_flags(number: int) -> int:
    """`sa_flags` of a signal's action, in the C library's struct on Linux: a pointer, 128 bytes of mask, the flags."""
    action = (ctypes.c_char * 256)()
    ctypes.CDLL(None).sigaction(number, None, action)
    return int.from_bytes(action[136:140], "little")


def test_a_session_in_another_thread_needs_no_signals():
    def run() -> None:
        one_session(kept)

    kept: list[torch.Tensor] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert is_whole(kept) and len(kept) == 1


def test_a_session_in_an_exit_stack_ends_with_it():
    with contextlib.ExitStack() as stack:
        stack.enter_context(memfit.session(BUDGET, "ram"))
        assert engine.load().active()
    assert not engine.load().active()


# --- signals inside doors


@pytest.mark.parametrize("door", ["tolist", "data_ptr"])
def test_a_signal_inside_a_door_lets_go_of_the_storage_at_once(door):
    def ring(number: int, frame: FrameType | None) -> None:
        raise Rung

    def ring_at(due: int, tensor: torch.Tensor) -> int:
        def at_line(line: int) -> None:
            if line == due:
                signal.raise_signal(signal.SIGUSR1)

        return traced(("guards.py", "patching.py"), at_line, getattr(tensor, door))

    with handled(signal.SIGUSR1, ring), memfit.session(BUDGET, "ram"):
        tensor, caught = evicted(), []
        gc.disable()
        try:
            lines = ring_at(0, evicted())
            for due in range(1, lines + 1):
                with pytest.raises(Rung) as error:
                    ring_at(due, tensor)
                caught.append(error)  # with its frames, and whatever they refer to
                press()
                assert not is_resident(tensor), due
            assert lines > 1
        finally:
            gc.enable()


# --- nothing is left


@pytest.mark.long
def test_thirty_sessions_leave_no_session_no_file_and_no_thread():
    def one() -> weakref.ref[memfit.Session]:
        with memfit.session("90%", "disk") as session:
            net = torch.nn.Linear(32, 32)
            optimizer = torch.optim.Adam(net.parameters())
            for _ in descend(optimizer, lambda: net(torch.ones(8, 32)).sum(), 8):
                pass
        return weakref.ref(session)

    one()
    gc.collect()
    files, threads, tasks = os.listdir("/proc/self/fd"), set(threading.enumerate()), set(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        sessions = [one() for _ in range(30)]
        assert [session() for session in sessions] == [None] * 30
    finally:
        gc.enable()
    assert os.listdir("/proc/self/fd") == files and set(threading.enumerate()) <= threads
    deadline = time.monotonic() + 10  # the kernel forgets a thread a moment after it was joined
    while not (left := set(os.listdir("/proc/self/task"))) <= tasks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left <= tasks

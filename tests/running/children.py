"""Forked children that do something and say what came of it, and scripts in processes of their own."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60  # seconds
PR_SET_PDEATHSIG = 1
TESTS = os.getpid()


class Child:
    """A forked process that runs `job`, at once or when it is told to, and says what it returned."""

    def __init__(self, job: Callable[[], object], waits: bool = False) -> None:
        self._waits = waits
        self._answers, answers = os.pipe()
        start, self._start = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 2
            os.close(self._start)
            if os.getppid() == TESTS:  # of a test that failed nobody is left
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            faulthandler.register(signal.SIGUSR1)
            try:
                if waits:
                    os.read(start, 1)
                os.write(answers, str(job()).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(answers)
        os.close(start)

    def answer(self) -> str:
        """Let the child begin if it waits; return what it says. Raises if it fails, or hangs."""
        if self._waits:
            os.write(self._start, b".")
        ready, _, _ = select.select([self._answers], [], [], PATIENCE)
        said = os.read(self._answers, 1 << 12).decode() if ready else "nothing: it hangs"
        if not ready:
            os.kill(self.pid, signal.SIGUSR1)  # it says where
            time.sleep(1)
            os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._answers)
        os.close(self._start)
        assert code == 0, f"the child ended with {code} and said {said}"
        return said


def child_says(job: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Fork; the child waits until the parent has done `meanwhile`, then says whether `job` returned true."""
    child = Child(lambda: bool(job()), waits=True)
    meanwhile()
    return child.answer() == "True"


def script_prints(folder: Path, source: str) -> list[str]:
    """Run a script in a process of its own, which may crash, and return the lines it prints."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

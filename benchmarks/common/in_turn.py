"""Workers that run in turn, some steps each: on a machine whose speed drifts, all meet the same drift.

A worker stops itself (SIGSTOP) after its steps, and goes on when its turn comes again. Only one runs at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO

from benchmarks.common.examples import Run, Worker

STEPS_A_TURN = 6


def run_in_turn(workers: Mapping[str, Worker]) -> dict[str, Run]:
    """Run each worker to its end; raises RuntimeError with the end of the errors of the first that fails."""
    with ExitStack() as stack:
        running = {name: _Running(worker, stack) for name, worker in workers.items()}
        try:
            while alive := [one for one in running.values() if not one.has_ended]:
                for one in alive:
                    one.take_turn()
        finally:
            for one in running.values():
                one.kill()
        return {name: one.found() for name, one in running.items()}


class _Running:
    """One worker: not begun yet, stopped, or at an end."""

    def __init__(self, worker: Worker, stack: ExitStack) -> None:
        self._worker = worker._replace(options={**worker.options, "steps_a_turn": STEPS_A_TURN})
        self._printed: IO[str] = stack.enter_context(TemporaryFile("w+"))  # noqa: SIM115
        self._errors: IO[str] = stack.enter_context(TemporaryFile("w+"))  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    def take_turn(self) -> None:
        """Let it go on, and wait until it has stopped again or ended."""
        process = self._process
        if process is None:
            command, environment = self._worker.command()
            process = self._process = subprocess.Popen(
                command, stdout=self._printed, stderr=self._errors, env=environment
            )
        else:
            process.send_signal(signal.SIGCONT)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self._process is not None and not self.has_ended:
            self._process.kill()
            self._process.wait()

    def found(self) -> Run:
        assert self._process is not None
        if self._process.returncode != 0:
            self._errors.seek(0)
            raise RuntimeError(f"{self._worker}: {self._errors.read()[-2000:]}")
        self._printed.seek(0)
        found: Run = json.loads(self._printed.read().splitlines()[-1])
        return found

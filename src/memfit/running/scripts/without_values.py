"""Scripts recorded without values, each in a process of its own (`ghostly`), for a row of arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from memfit.errors import InputError, InternalError
from memfit.files import load_trace
from memfit.ir import Trace
from memfit.running.scripts.script import Program, failure_said

ON_THE_DEVICE = "record it on the device, once for each value: memfit trace ... -o FILE; then memfit whatif FILE ..."

ENDED = "the script ended with exit code"
_LINES = 4  # of a traceback


@dataclass(frozen=True)
class Request:
    """A script to run without values up to the end of its first whole iteration, whose trace is written to `output`."""

    script: str
    arguments: list[str]
    output: str
    accelerator: str = "h100"
    is_module: bool = False

    @property
    def program(self) -> Program:
        """The program to run."""
        return Program(self.script, self.is_module)


def record_without_values(
    program: Program, arguments: list[str], environment: Mapping[str, str], accelerator: str = "h100"
) -> Trace:
    """Record one iteration of a script whose tensors have no values, in a process of its own.

    Arguments:
        program: The script; what it prints is dropped.
        arguments: Its arguments.
        environment: Variables to set for it.
        accelerator: The GPU whose roofline times the ops.

    Returns:
        The trace.

    Raises:
        InputError: The script fails, or cannot do without values; the message has its last lines.
        InternalError: memfit's own code failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "trace.json")
        request = Request(program.name, arguments, output, accelerator, program.is_module)
        command = [sys.executable, "-m", "memfit.running.scripts.ghostly", json.dumps(asdict(request))]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            env=os.environ | environment,
        )  # fmt: skip
        if done.returncode == InternalError.exit_code and (own := failure_said(done.stderr)) is not None:
            raise own
        if done.returncode or not os.path.exists(output):
            raise _failure(program, arguments, environment, done.stderr)
        return load_trace(output)


def _failure(program: Program, arguments: list[str], environment: Mapping[str, str], said: str) -> InputError:
    words = [*(f"{name}={value}" for name, value in environment.items()), str(program), *arguments]
    why = _last_words(said) or "it ended without a word"
    return InputError(f"no iteration of '{' '.join(words)}' could be recorded", why=why, remedy=ON_THE_DEVICE)


def _last_words(said: str) -> str:
    """Return the error of memfit's in what a process said; of the script's own error the end of its traceback."""
    before, _, own = said.rpartition("memfit: error: ")
    if own and not own.startswith(ENDED):
        return ": ".join(line.strip().removeprefix("why: ") for line in own.splitlines()[:2])
    return "\n       ".join(line.strip() for line in (before or said).strip().splitlines()[-_LINES:])

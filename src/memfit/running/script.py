"""Run a script as `python SCRIPT` would, in this process, inside a session."""

from __future__ import annotations

import builtins
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from memfit.errors import InputError


def check_script(path: str) -> None:
    """Raise InputError if `path` is no readable file."""
    if not Path(path).is_file():
        raise InputError(f"there is no script '{path}'", remedy="name a Python file: memfit run --budget 60% train.py")


def run_as_main(path: str, arguments: Sequence[str]) -> None:
    """Run the script as `__main__` with `sys.argv` and `sys.path[0]` as Python sets them.

    Whatever the script raises passes through, SystemExit included.
    """
    file = os.path.abspath(path)  # as Python names its main script
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins, __spec__=None, __loader__=None)
    # The module must stay alive and be found by name: pickle, multiprocessing and dataclasses look it up.
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    code = compile(Path(path).read_bytes(), file, "exec")
    exec(code, main.__dict__)


def exit_code_of(error: BaseException) -> int:
    """Report an exception that ended the script as Python would, and return the code it would exit with.

    A negative code means death by that signal, as Python itself ends on an interrupt.
    """
    if isinstance(error, SystemExit):
        if isinstance(error.code, int) or error.code is None:
            return (error.code or 0) & 0xFF  # what is left of it in a process's exit status
        print(error.code, file=sys.stderr)
        return 1
    error = error.with_traceback(_scripts_part(error.__traceback__))
    sys.excepthook(type(error), error, error.__traceback__)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def die_as(code: int) -> None:
    """End the process by the signal that a negative exit code stands for."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _scripts_part(trace: TracebackType | None) -> TracebackType | None:
    """Leave out memfit's own frames above the script's."""
    own = str(Path(__file__).parents[1])
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    return trace

"""Run a program as `python SCRIPT` or `python -m MODULE` would, in this process."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pkgutil
import re
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from traceback import format_exception, walk_tb
from types import CodeType, ModuleType, TracebackType

from memfit.errors import BudgetError, InputError, InternalError, MemfitError
from memfit.messages import flush_output, say
from memfit.running.frames import is_memfits, passing

OWN_ERROR = re.compile(r"^memfit: (rank \d+: )?error: ", re.MULTILINE)
_OWN = str(Path(__file__).parents[2]) + os.sep


@dataclass(frozen=True)
class Program:
    """A program to run: a script (a file, or a folder or zip file with a `__main__.py`), or a module by its name."""

    name: str
    is_module: bool = False

    def __str__(self) -> str:
        return " ".join(self.words())

    def words(self) -> list[str]:
        """Return it as the words of a command line."""
        return ["-m", self.name] if self.is_module else [self.name]


def as_program(program: Program | str) -> Program:
    """Return `program`, or the script of that name."""
    return Program(program) if isinstance(program, str) else program


def check_program(program: Program) -> None:
    """Raise InputError if the script does not exist. A module is looked for at its run: that may run its package."""
    path = Path(program.name)
    if program.is_module:
        return
    why = ""
    if program.name == "-":
        why = "memfit does not read a script from standard input; name /dev/stdin if that is redirected from a file"
    elif path.is_dir() and not any(path.glob("__main__.py*")):
        why = "the folder has no __main__.py"
    elif path.exists() and not os.access(path, os.R_OK):
        why = "it cannot be read"
    if why or not path.exists():
        remedy = "name a Python file: memfit run --budget 60% train.py, or a module: memfit run --budget 60% -m package"
        raise InputError(f"there is no script '{program.name}'", why=why, remedy=remedy)


@passing
def run_as_main(program: Program | str, arguments: Sequence[str]) -> None:
    """Run the program as `__main__` with `sys.argv` and `sys.path[0]` as Python sets them.

    Whatever it raises passes through, SystemExit included.
    """
    program = as_program(program)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __spec__=None, __loader__=None)
    # The module must stay alive and be found by name: pickle, multiprocessing and dataclasses look it up.
    sys.modules["__main__"] = main
    sys.argv = ["-m" if program.is_module else program.name, *arguments]
    # Python itself does this for -m, folders and zip files; `runpy.run_module` would make a module of its own.
    run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
    if program.is_module:
        _look_first_in(os.getcwd())
        run_module(program.name, alter_argv=True)
    elif pkgutil.get_importer(program.name) is not None:
        sys.path[0] = os.path.abspath(program.name)
        run_module("__main__", alter_argv=False)
    else:
        file = os.path.abspath(program.name)  # as Python names its main script
        main.__dict__["__file__"] = file
        _look_first_in(str(Path(program.name).resolve().parent))
        exec(_code(file), main.__dict__)


def _look_first_in(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


@passing
def _code(file: str) -> CodeType:
    with io.open_code(file) as compiled:
        code: CodeType | None = pkgutil.read_code(compiled)
    if code is not None:
        return code
    # Otherwise the script would inherit what this module imports from __future__.
    return compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)


def exit_code_of(error: BaseException) -> int:
    """Report an exception that ended the program as Python would, and return the code it would exit with.

    A negative code means death by that signal, as Python itself ends on an interrupt.
    """
    if isinstance(error, SystemExit):
        return _status(error.code)
    for one in _chain(error):
        one.__traceback__ = _scripts_part(one.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as end:
        return _status(end.code)
    except Exception:
        sys.__excepthook__(type(error), error, error.__traceback__)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _status(code: object) -> int:
    """Return a SystemExit's code as it appears in the status of a process."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    say(str(code))
    return 1


def memfit_error_behind(error: BaseException) -> MemfitError | None:
    """Return the error of memfit's that a library has wrapped in `error`, if its traceback would show one."""
    for one in _chain(error, shown=True):
        if isinstance(one, MemfitError):
            return one
        if isinstance(one, RuntimeError) and "memfit: " in str(one):  # torch's own, with the engine's message in it
            return BudgetError(str(one).partition("memfit: ")[2].partition("\n")[0])
    return None


def memfits_failure(error: BaseException, program: Program | str) -> InternalError | None:
    """Return the error for an exception of memfit's own code that ended the program; None for the program's own.

    Its traceback, with all frames, is on standard error then.
    """
    failed = next((one for one in _chain(error, shown=True) if is_memfits(one)), None)
    if failed is None:
        return None
    say("".join(format_exception(error)), end="")
    *_, (frame, line) = walk_tb(failed.__traceback__)
    return InternalError(
        f"memfit failed: {type(failed).__name__}: {str(failed).partition(chr(10))[0]} "
        f"({Path(frame.f_code.co_filename).name}:{line})",
        why="memfit's own code raised that, not the script: the traceback above has memfit's frames in it",
        remedy=f"please report it with the traceback; the script runs without memfit: python {as_program(program)}",
    )


def failure_said(said: str) -> InternalError | None:
    """Return the error with which another process has said that memfit failed; the traceback before it is said again.

    None if it said nothing of the kind.
    """
    *_, own = (None, *OWN_ERROR.finditer(said))
    if own is None:
        return None
    say(said[: own.start()], end="")
    return InternalError((own[1] or "") + said[own.end() :].strip())


def die_as(code: int) -> None:
    """End the process by the signal that a negative exit code stands for."""
    flush_output()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _chain(error: BaseException, shown: bool = False) -> Iterator[BaseException]:
    """Yield `error` and all that it came from; `shown`: only what its traceback would show."""
    found, seen = [error], set()
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        hidden = shown and (one.__suppress_context__ or one.__cause__ is not None)
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        found += [e for e in (one.__cause__, None if hidden else one.__context__, *parts) if e is not None]


def _scripts_part(trace: TracebackType | None) -> TracebackType | None:
    """Leave out memfit's own frames, above the script's and between them."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            kept.append(trace)
        trace = trace.tb_next
    for frame, following in zip_longest(kept, kept[1:]):
        frame.tb_next = following
    return kept[0] if kept else None

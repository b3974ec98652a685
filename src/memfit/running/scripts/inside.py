"""A program from start to end, in a session or without one; its end is reported once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from memfit.errors import EngineError, MemfitError
from memfit.messages import say_error
from memfit.running.frames import passing
from memfit.running.scripts.script import (
    Program,
    die_as,
    exit_code_of,
    memfit_error_behind,
    memfits_failure,
    run_as_main,
)
from memfit.running.session import Session


class EndOfProgram(BaseException):
    """Ends the program where all has been seen. Not an Exception: no handler of the program's is meant for it."""


def run_program(
    program: Program | str,
    arguments: Sequence[str],
    session: Session | None = None,
    watch: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """Run `program` in `session`, watched by what `watch` opens in it; returns the exit code Python would end with.

    The program's own exceptions are reported as Python reports them. Raises MemfitError where the session cannot
    begin or has to end, also where a library has wrapped that error. In a child that the program has forked it raises
    SystemExit: the child ends as it would plainly, and session, files and reports are its parent's.
    """
    owner = os.getpid()
    if session is not None:
        _begin(session)
    error = _raised_by(program, arguments, watch)
    if os.getpid() != owner:
        _end_child(error, program)
    if session is not None:
        error = _leave(session, error)
    return _reported(error, program)


def _begin(session: Session) -> None:
    """Enter the session: a failure there is not the program's fault."""
    try:
        session.__enter__()
    except MemfitError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise EngineError("memfit's session could not begin", why=why, remedy="memfit doctor") from error


@passing
def _raised_by(
    program: Program | str, arguments: Sequence[str], watch: Callable[[], AbstractContextManager[Any]]
) -> BaseException | None:
    try:
        with watch():
            run_as_main(program, arguments)
    except BaseException as error:
        return error
    return None


def _leave(session: Session, error: BaseException | None) -> BaseException | None:
    """End the session; returns the error that ended the program then."""
    try:
        session.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except BaseException as another:
        return another
    return error


def _reported(error: BaseException | None, program: Program | str) -> int:
    if error is None or isinstance(error, EndOfProgram):
        return 0
    if isinstance(error, MemfitError):
        raise error
    behind = memfit_error_behind(error) if isinstance(error, Exception) else None
    if behind is None and (failure := memfits_failure(error, program)) is not None:
        raise failure
    code = exit_code_of(error)
    if behind is not None:
        raise behind
    return code


def _end_child(error: BaseException | None, program: Program | str) -> NoReturn:
    if isinstance(error, SystemExit):
        raise error
    try:
        code = _reported(error, program)
    except MemfitError as own:
        say_error(own)
        code = own.exit_code
    if code < 0:
        die_as(code)
    raise SystemExit(code)

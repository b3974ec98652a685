"""A cell that a magic runs: its exception is shown once, though the cell that has the magic meets it too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from memfit.errors import MemfitError
from memfit.integrations.notebook.cells import renumber, with_cells


class InnerCell:
    """One run of such a cell. What it raises is raised on at once, and shown when `tell` is called."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._held: list[dict[str, Any]] = []

    def run(self, cell: str, *, silent: bool) -> None:
        """Run `cell`, and raise what it raises; `silent` shows no value of its last line."""
        with self._untold():
            result = self._shell.run_cell(cell, silent=silent)
        renumber(self._shell)
        self._error = result.error_before_exec or result.error_in_exec
        if self._error is not None:
            self._traceback = self._error.__traceback__
            raise self._error

    @contextmanager
    def _untold(self) -> Iterator[None]:
        """Hold exceptions back. Errors of syntax are not held: they are shown before anything runs."""

        def hold(exc_tuple: Any = None, **how: Any) -> None:
            self._held.append(how)

        restore = _replaced(self._shell, hold)
        try:
            yield
        finally:
            restore()

    def tell(self, error: BaseException) -> None:
        """Show the exception that the cell ended in, or `error`, which is being handled and has taken its place.

        Its next showing is left out. An error that has come after the cell is left to whoever meets it.
        """
        own, self._error = self._error, None
        if own is None:
            return
        if error is not own:  # memfit's for torch's, of the same line and with the same message
            error.__cause__, error.__suppress_context__ = None, True
        if isinstance(error, MemfitError):
            error.args = (with_cells(str(error), self._shell),)
        for how in self._held[-1:]:
            self._shell.showtraceback((type(error), error, self._traceback), **how)
        _leave_out(self._shell, error)


def _leave_out(shell: Any, error: BaseException) -> None:
    """Have IPython not show `error` until the cell that runs has ended."""
    previous = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **how: Any) -> None:
        if (exc_tuple or sys.exc_info())[1] is not error:
            previous(exc_tuple, *args, **how)

    restore = _replaced(shell, showtraceback)

    def ended(*_: Any) -> None:
        restore()
        shell.events.unregister("post_run_cell", ended)

    shell.events.register("post_run_cell", ended)


def _replaced(shell: Any, by: Callable[..., None]) -> Callable[[], None]:
    """Put `by` in the place of `showtraceback`; return what puts that back, unless something else is there then."""
    previous, shell.showtraceback = shell.showtraceback, by

    def restore() -> None:
        if shell.showtraceback is by:
            shell.showtraceback = previous

    return restore

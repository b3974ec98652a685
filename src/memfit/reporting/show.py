"""A report, printed as text for a person or as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Report = TypeVar("Report", bound=DataclassInstance)
else:
    Report = TypeVar("Report")


def show(report: Report, to_text: Callable[[Report], RenderableType], *, as_json: bool, indent: int | None = 2) -> None:
    """Print `report` on standard output; see `to_json` for `indent`."""
    if as_json:
        print(to_json(report, indent=indent))
    else:
        print_text(to_text(report))


def to_json(report: DataclassInstance, *, indent: int | None = 2) -> str:
    """Return `report` as a JSON object, with the names of its fields; without `indent` on one line.

    One line is for commands whose standard output is also that of a script: a reader takes the last one.
    """
    values: dict[str, Any] = asdict(report)
    return json.dumps(values, indent=indent)


def print_text(text: RenderableType, console: Console | None = None) -> None:
    """Print what `to_text` returns on `console` (default: standard output); a string as it is."""
    if isinstance(text, str) and console is None:
        print(text)
    else:
        (console or _Console()).print(text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command line (rich would exit with code 1)."""
        raise BrokenPipeError

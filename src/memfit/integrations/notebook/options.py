"""The options of a magic's line, and errors that IPython shows without a traceback."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.error import UsageError

from memfit import errors


def options_of(parser: Any, line: str) -> Any:
    """Return what `parser` reads in `line`, split as a shell splits it; raises IPython's UsageError."""
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        remedy = "close the quotation, or put a backslash before the quotation mark"
        raise in_short(
            errors.UsageError(f"the options cannot be read: {line}", why=str(error), remedy=remedy)
        ) from None


def in_short(error: errors.MemfitError) -> UsageError:
    """Return `error` as one that IPython shows without a traceback."""
    return UsageError(str(error))

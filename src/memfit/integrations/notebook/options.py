"""The options of a magic's line."""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.error import UsageError


def options_of(parser: Any, line: str) -> Any:
    """Return what `parser` reads in `line`, split as a shell splits it; raises IPython's UsageError."""
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"{error}: {line}") from None

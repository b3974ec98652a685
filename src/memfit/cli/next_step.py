"""What to type next: the last line of every command."""

from __future__ import annotations

import sys


def print_next(command: str) -> None:
    """Print `command` on stderr as the one to try next, so that stdout stays the command's own output."""
    sys.stdout.flush()  # where both streams are one terminal or file, this line comes last
    print(f"next: {command}", file=sys.stderr)

"""The last line of every command: the next one to type."""

from __future__ import annotations

from memfit.messages import flush_output, say


def print_next(command: str) -> None:
    """Print `command` on stderr as the one to try next, so that stdout stays the command's own output."""
    flush_output()  # where both streams are one terminal or file, this line comes last
    say(f"next: {command}")

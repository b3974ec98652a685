"""Messages beside the output of a script, which may have closed or replaced its streams."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from pathlib import Path

from memfit.ranks import speaks_for_all, this_rank
from memfit.terminal import printing

_LONGEST = 200  # letters of an error that is none of the user's
_OWN = re.compile("^memfit: ", re.MULTILINE)


def say(text: str, end: str = "\n") -> None:
    """Print `text` on standard error if that is possible; a run goes on without a line that nobody could read.

    In a run of several ranks, memfit's own lines name the one that says so.
    """
    stream = getattr(sys, "stderr", None)
    if (rank := this_rank()) is not None:
        text = _OWN.sub(f"memfit: rank {rank}: ", text)
    if stream is not None:  # to print, None would be standard output
        with contextlib.suppress(Exception), printing():
            print(f"{text}{end}", end="", file=stream, flush=True)  # whole: other processes may print there, too


def say_for_all(text: str) -> None:
    """Print what every rank of a run would say alike, or nearly so: the first one does."""
    if speaks_for_all():
        say(text)


def flush_output() -> None:
    """Write out the buffer of standard output, so that the next message comes after it."""
    stream = getattr(sys, "stdout", None)
    if stream is not None:
        with contextlib.suppress(ValueError):  # it is closed
            stream.flush()


def say_error(error: Exception) -> None:
    """Print an error of memfit's own, as every command does."""
    # The engine's messages name memfit themselves, since they also surface inside torch's errors.
    say(f"memfit: error: {str(error).removeprefix('memfit: ')}")


def described(error: BaseException) -> str:
    """Return an error in one line, with the place in memfit where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if "memfit" in Path(frame.filename).parts), None)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text[:_LONGEST]} at {Path(own.filename).name}:{own.lineno}" if own else text[:_LONGEST]

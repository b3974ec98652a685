"""Any file memfit can take lifetimes from, told apart by its content, not by its name."""

from __future__ import annotations

import os
from enum import Enum

from memfit.errors import InputError, UsageError
from memfit.events import MallocStream, NamedLifetimes, events_of_lifetimes, events_of_trace, lifetimes_of_trace
from memfit.files.document import read_beginning
from memfit.files.lifetimes_csv import load_lifetimes_csv
from memfit.files.paper_text import ACCESS_HEADER, MALLOC_HEADER, load_paper_access_lifetimes, load_paper_mallocs
from memfit.files.snapshot import load_snapshot
from memfit.files.trace import load_trace
from memfit.ir import Trace

_BEGINNING_BYTES = 1 << 16


class Format(Enum):
    """The content of a file."""

    TRACE = "a memfit trace"
    SNAPSHOT = "a torch memory snapshot"
    PAPER_MALLOCS = "mallocs of the SmartPool paper"
    PAPER_ACCESSES = "accesses of the SmartPool paper"
    LIFETIMES = "a table of lifetimes"


def recognise(path: str | os.PathLike[str]) -> Format:
    """Return the kind of content in `path`; a damaged file has the kind that its beginning looks like.

    Raises InputError if it cannot be read or its first bytes match none of the known formats.
    """
    data = read_beginning(path, _BEGINNING_BYTES)
    # Since protocol 2 a pickle begins with 0x80; before, one of a dict began with "(d" or "}".
    if data.startswith((b"\x80", b"(d", b"}")):
        return Format.SNAPSHOT
    first = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"{"):
        return Format.TRACE
    line = first.split(b"\n", 1)[0].replace(b" ", b"").strip()
    for header, known in ((MALLOC_HEADER, Format.PAPER_MALLOCS), (ACCESS_HEADER, Format.PAPER_ACCESSES)):
        if line == ",".join(header).encode():
            return known
    if b"," in line:
        return Format.LIFETIMES
    remedy = "pass a memfit trace, a CSV of lifetimes (id,lower,upper,size) or a torch memory snapshot"
    raise InputError(
        f"{path} is not a file memfit can read", why="its first bytes match none of the known formats", remedy=remedy
    )


def load_lifetimes(path: str | os.PathLike[str], *, device: int | None = None) -> NamedLifetimes:
    """Read the lifetimes in any file memfit knows; `device` chooses one in a snapshot of several.

    Arguments:
        path: A trace, a CSV of lifetimes, a torch memory snapshot, or a log of the SmartPool paper; gzipped or not.
        device: The number of a device of a snapshot; None takes the one with most events.

    Returns:
        The lifetimes.

    Raises:
        InputError: The file is malformed.
        UsageError: A device is named, but the file has none to choose from.
    """
    return load_lifetimes_and_trace(path, device=device)[0]


def load_lifetimes_and_trace(
    path: str | os.PathLike[str], *, device: int | None = None
) -> tuple[NamedLifetimes, Trace | None]:
    """Read a file as `load_lifetimes` does, once; the trace itself comes too, if it is one."""
    kind = recognise(path)
    if kind is Format.SNAPSHOT:
        return load_snapshot(path, device=device), None
    if device is not None:
        raise UsageError(f"{path} has no devices to choose from", why=f"it is {kind.value}", remedy="leave it out")
    if kind is Format.TRACE:
        trace = load_trace(path)
        return lifetimes_of_trace(trace), trace
    if kind is Format.PAPER_MALLOCS:
        return load_paper_mallocs(path), None
    if kind is Format.PAPER_ACCESSES:
        return load_paper_access_lifetimes(path), None
    return load_lifetimes_csv(path).lifetimes, None


def load_events(path: str | os.PathLike[str], *, device: int | None = None) -> MallocStream:
    """Read the mallocs and frees in any file memfit knows; raises as `load_lifetimes` does.

    Raises:
        InputError: The file is malformed.
        UsageError: A device is named, but the file has none to choose from.
    """
    if device is None and recognise(path) is Format.TRACE:
        return events_of_trace(load_trace(path))
    return events_of_lifetimes(load_lifetimes(path, device=device))

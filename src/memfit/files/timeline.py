"""Timeline <-> file: columns of numbers, checked on the way in."""

from __future__ import annotations

import os
from typing import Any

from memfit.files.document import Fields, read_document, write_document
from memfit.ir import Copy, Direction, Stall, Timeline

_KIND = "timeline"
_VERSION = 1
_DIRECTIONS = tuple(Direction)


def save_timeline(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a timeline to a file.

    Arguments:
        timeline: The timeline.
        path: The file; it is gzipped if its name ends in ".gz".

    Raises:
        InputError: The file cannot be written.
    """
    write_document(path, _KIND, _VERSION, timeline_body(timeline))


def timeline_body(timeline: Timeline) -> dict[str, Any]:
    """Return `timeline` as the plain data of its file."""
    return {
        "iteration_us": timeline.iteration_us,
        "compute_us": timeline.compute_us,
        "host_bytes": timeline.host_bytes,
        "ops": {
            "start_us": list(timeline.start_us),
            "end_us": list(timeline.end_us),
            "resident_bytes": list(timeline.resident_bytes),
        },
        "stalls": {
            "op": [stall.op for stall in timeline.stalls],
            "swap": [stall.swap for stall in timeline.stalls],
            "direction": [_DIRECTIONS.index(stall.direction) for stall in timeline.stalls],
            "duration_us": [stall.duration_us for stall in timeline.stalls],
        },
        "copies": {
            "swap": [copy.swap for copy in timeline.copies],
            "direction": [_DIRECTIONS.index(copy.direction) for copy in timeline.copies],
            "size_bytes": [copy.size_bytes for copy in timeline.copies],
            "start_us": [copy.start_us for copy in timeline.copies],
            "end_us": [copy.end_us for copy in timeline.copies],
        },
    }


def load_timeline(path: str | os.PathLike[str]) -> Timeline:
    """Read a timeline from a file.

    Arguments:
        path: A file of `save_timeline` or `memfit simulate`, gzipped or not.

    Returns:
        The timeline.

    Raises:
        InputError: The file is malformed. The message names the file, the field and the reason.
    """
    fields = read_document(path, _KIND, _VERSION)
    ops = fields.section("ops")
    resident = ops.integers("resident_bytes", None, 0)
    return Timeline(
        start_us=tuple(ops.numbers("start_us", len(resident))),
        end_us=tuple(ops.numbers("end_us", len(resident))),
        resident_bytes=tuple(resident),
        stalls=_stalls(fields.section("stalls")),
        copies=_copies(fields.section("copies")),
        iteration_us=fields.number("iteration_us"),
        compute_us=fields.number("compute_us"),
        host_bytes=fields.integer("host_bytes", 0),
    )


def _stalls(columns: Fields) -> tuple[Stall, ...]:
    ops = columns.integers("op", None, 0)
    swaps = columns.integers("swap", len(ops), 0)
    directions = _directions(columns, len(ops))
    durations = columns.durations("duration_us", len(ops))
    return tuple(Stall(*row) for row in zip(ops, swaps, directions, durations, strict=True))


def _copies(columns: Fields) -> tuple[Copy, ...]:
    swaps = columns.integers("swap", None, 0)
    count = len(swaps)
    sizes = columns.integers("size_bytes", count, 0)
    starts, ends = columns.numbers("start_us", count), columns.numbers("end_us", count)
    rows = zip(swaps, _directions(columns, count), sizes, starts, ends, strict=True)
    return tuple(Copy(*row) for row in rows)


def _directions(columns: Fields, count: int) -> list[Direction]:
    return [_DIRECTIONS[index] for index in columns.integers("direction", count, 0, len(_DIRECTIONS) - 1)]

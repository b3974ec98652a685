"""The report of `memfit trace`: the recorded trace, and its file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordingReport:
    """The size of a trace; `signature` identifies its op stream."""

    file: str
    ops: int
    storages: int
    signature: str


def to_text(report: RecordingReport) -> str:
    """Return `report` for a person."""
    return f"{report.ops} ops on {report.storages} storages written to {report.file}"

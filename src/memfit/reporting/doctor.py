"""The report of `memfit doctor`: whether this machine has what memfit needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FindingInfo:
    """One thing that was looked at. `values` are plain numbers for programs."""

    name: str
    ok: bool
    text: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All that was looked at; `ok` if memfit can run here."""

    ok: bool
    findings: tuple[FindingInfo, ...]


def to_text(report: DoctorReport) -> str:
    """Return `report` for a person, a line a finding."""
    width = max(len(finding.name) for finding in report.findings)
    return "\n".join(f"{'ok ' if f.ok else 'BAD'} {f.name:{width}}  {f.text}" for f in report.findings)

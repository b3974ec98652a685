"""The report of `memfit pack`: the quality of a placement of a file's lifetimes."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.reporting.tables import exact_bytes
from memfit.units import format_bytes


@dataclass(frozen=True, slots=True)
class PackReport:
    """The number of lifetimes and the bytes they were placed in. `in_place` of them took over the bytes of another.

    No placement is smaller than `lower_bound_bytes`; `gap` is how far the footprint is above that, as a fraction.
    `proven`: none is smaller than this one.
    """

    file: str
    lifetimes: int
    in_place: int
    footprint_bytes: int
    lower_bound_bytes: int
    gap: float
    proven: bool
    seconds: float


def to_text(report: PackReport) -> str:
    """Return `report` for a person."""
    bound = format_bytes(report.lower_bound_bytes)
    if report.footprint_bytes == report.lower_bound_bytes:
        how = "the lower bound: nothing can be smaller"
    elif report.proven:
        how = f"proven the smallest; the peak of live bytes is {bound}"
    else:
        how = f"at most {report.gap:.4%} above the smallest possible ({bound} are live at the peak)"
    shared = f" ({report.in_place} in place of another)" if report.in_place else ""
    exact = exact_bytes(report.footprint_bytes)
    return f"{report.lifetimes} lifetimes{shared} in {exact}, {how}; {report.seconds:.3f} s"

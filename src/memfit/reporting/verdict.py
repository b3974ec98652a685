"""The report of `memfit verify`: whether a run under a budget is the plain run, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.units import format_bytes, format_excess


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One of the two runs. `stats` are a session's; `no_limit` says why a share never became a limit."""

    seconds: float
    peak_rss_bytes: int
    stats: dict[str, int] | None
    no_limit: str


@dataclass(frozen=True, slots=True)
class DifferenceInfo:
    """The first hash that is not the same in both runs, and the first op whose output differs ("" if none)."""

    step: int
    what: str
    op: str


@dataclass(frozen=True, slots=True)
class VerdictReport:
    """The result of the comparison. `compared` counts hashes, by kind; `skipped` tensors without one, by the reason.

    Steps are an optimizer's, or forward passes.
    """

    equal: bool
    steps: int
    compared: dict[str, int]
    skipped: dict[str, int]
    difference: DifferenceInfo | None
    plain: RunInfo
    limited: RunInfo


@dataclass(frozen=True, slots=True)
class RanksReport:
    """The verdict on each rank of a distributed run, by number."""

    equal: bool
    ranks: tuple[VerdictReport, ...]


def ranks_to_text(report: RanksReport) -> str:
    """Return `report` for a person."""
    texts = (to_text(verdict).replace("\n", "\n  ") for verdict in report.ranks)
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))


def to_text(report: VerdictReport) -> str:
    """Return `report` for a person."""
    counts = ", ".join(f"{count} x {kind}" for kind, count in report.compared.items())
    stats = report.limited.stats or {}
    steps = "forward passes" if report.compared.keys() == {"output"} else "optimizer steps"
    return "\n".join((
        f"{'equal' if report.equal else 'NOT EQUAL'}: {counts}, over {report.steps} {steps}",
        *(f"not compared: {count} x {why}" for why, count in report.skipped.items()),
        f"plain run:   {_spent(report.plain)}",
        f"budget run:  {_spent(report.limited)}, "
        f"arena peak {format_bytes(stats['peak_footprint_bytes'])} of {format_bytes(stats['budget_bytes'])}, "
        f"{format_bytes(stats['bytes_out'])} out, {format_bytes(stats['bytes_in'])} in",
        *([format_excess(stats["growths"], stats["peak_growth_bytes"])] if stats.get("growths") else []),
    ))  # fmt: skip


def _spent(run: RunInfo) -> str:
    return f"peak RSS {format_bytes(run.peak_rss_bytes)}, {run.seconds:.1f} s"

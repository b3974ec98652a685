"""The report of `memfit whatif TRACE --with ...`: each technique's peak and floor beside those as recorded."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memfit.reporting.tables import add_row, new_table
from memfit.reporting.whatif import Case, case_cells
from memfit.units import format_bytes, format_share

_AS_IT_IS, _ALL = "as it is", "all of them"


@dataclass(frozen=True, slots=True)
class Applied:
    """A technique, or several together, applied to a trace.

    Attributes:
        words: The techniques, as they are written.
        case: The trace's figures with them.
        library: The library that applies it; "" for several together.
        lines: The lines of Python that do.
        about: What it does, in a few words.
    """

    words: tuple[str, ...]
    case: Case
    library: str = ""
    lines: tuple[str, ...] = ()
    about: str = ""


@dataclass(frozen=True, slots=True)
class Compression:
    """What techniques take off one trace.

    Attributes:
        trace: The file.
        machine: The name of the machine that plans are for.
        as_it_is: The figures of the trace itself.
        applied: Those with each technique, then with all together, if there are several.
    """

    trace: str
    machine: str
    as_it_is: Case
    applied: tuple[Applied, ...]


def to_text(report: Compression) -> RenderableType:
    """Return `report` as a table, with the lines that apply each technique below it."""
    budget = report.as_it_is.budget_bytes
    columns = ["peak", "off", "smallest", "off "] + (["fits", "added", "bound"] if budget is not None else [])
    table = new_table("", "with", *columns)
    table.title = None
    for column in table.columns:
        column.no_wrap = True
    table.columns[0].min_width = max(len(_ALL), *(len(each.words[0]) for each in report.applied))
    for column in table.columns[1:]:
        column.justify = "right"
    add_row(table, _AS_IT_IS, *_cells(report.as_it_is, report.as_it_is, columns))
    for each in report.applied:
        add_row(table, each.words[0] if each.library else _ALL, *_cells(each.case, report.as_it_is, columns))
    within = "" if budget is None else f", budget {format_bytes(budget)}"
    heading = Text(f"{report.trace} on {report.machine}{within}; foreseen from the recorded iteration, not run")
    said = [
        Text(line, no_wrap=True, overflow="ignore")
        for each in report.applied
        if each.library
        for line in _how(each, report.as_it_is)
    ]
    return Group(heading, Padding(table, (1, 0)), *said)


def _cells(case: Case, before: Case, columns: list[str]) -> list[str]:
    shown = case_cells(case)
    shown["off"] = _change(case.peak_bytes, before.peak_bytes)
    shown["off "] = _change(case.floor_bytes, before.floor_bytes)
    return [shown[column] for column in columns]


def _change(now: int, before: int) -> str:
    return format_share(now / max(before, 1) - 1) if now != before else ""


def _how(each: Applied, before: Case) -> list[str]:
    """Return what a technique does, what it takes off nothing, and how it is applied."""
    lines = [f"{each.words[0]}: {each.about} ({each.library})"]
    if each.case.peak_bytes >= before.peak_bytes:
        more = each.case.peak_bytes - before.peak_bytes
        lines.append(f"  takes nothing off a training iteration{f': {format_bytes(more)} more' if more else ''}")
    return [*lines, *(f"    {line}" for line in each.lines)]

"""The report of `memfit whatif`: peak, smallest budget and foreseen added time, case by case."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from memfit.reporting.tables import add_row, new_table
from memfit.units import format_bytes, format_share, format_us

IN_PARTS = "slices or maps"
_ABOUT_PARTS = (
    f"{IN_PARTS}: less than an op needs at once, so that no plan moves enough; memfit run may still train, with that "
    "op in slices or on mapped storages, and is slower"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One case in numbers.

    Attributes:
        values: What was varied, by name; "trace" with the file of a recorded one.
        device: Where it was recorded, and how it was timed.
        ops: The number of ops in an iteration.
        compute_us: Microseconds of them.
        peak_bytes: The most that is live at once, aligned.
        floor_bytes: The smallest feasible budget, with swaps and recomputation.
        budget_bytes: The budget; None if none was given.
        fits: "as it is", "with a plan", "slices or maps" (no plan meets the budget, and ops that need more may run so)
            or "no"; "" without a budget.
        added: The plan's added time as a part of the computation; None without a plan.
        bound: The time bound; None if no plan can meet the budget, or none was given.
    """

    values: dict[str, str]
    device: str
    ops: int
    compute_us: float
    peak_bytes: int
    floor_bytes: int
    budget_bytes: int | None
    fits: str
    added: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The cases of one script, or of several traces, on one machine."""

    subject: str
    machine: str
    cases: tuple[Case, ...]


def to_text(report: WhatIf) -> RenderableType:
    """Return `report` as a table: a row a case."""
    names = list(dict.fromkeys(name for case in report.cases for name in case.values))
    budgets = {case.budget_bytes for case in report.cases}
    figures = ["iteration", "peak", "smallest"]
    figures += ["budget"] if len(budgets) > 1 else []
    figures += ["fits", "added", "bound"] if budgets != {None} else []
    table = new_table("", *names, *figures)
    table.title = None
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[len(names) :]:
        column.justify = "right"
    for case in report.cases:
        shown = case_cells(case)
        add_row(table, *(case.values.get(name, "") for name in names), *(shown[figure] for figure in figures))
    devices = dict.fromkeys(case.device for case in report.cases)
    heading = f"{_title(report, budgets)}; recorded on {'; '.join(devices)}"
    below = [Padding(Text(_ABOUT_PARTS), (1, 0, 0, 0))] if any(case.fits == IN_PARTS for case in report.cases) else []
    return Group(Text(heading), Padding(table, (1, 0, 0, 0)), *below)


def _title(report: WhatIf, budgets: set[int | None]) -> str:
    known = [budget for budget in budgets if budget is not None]
    budget = f", budget {format_bytes(known[0])}" if len(budgets) == 1 and known else ""
    return f"{report.subject or 'traces'} on {report.machine}{budget}"


def case_cells(case: Case) -> dict[str, str]:
    """Return the cells of a case's row, by the name of the column."""
    return {
        "iteration": format_us(case.compute_us),
        "peak": format_bytes(case.peak_bytes),
        "smallest": format_bytes(case.floor_bytes),
        "budget": "" if case.budget_bytes is None else format_bytes(case.budget_bytes),
        "fits": case.fits,
        "added": "" if case.added is None else format_share(case.added),
        "bound": "no plan" if case.bound is None else format_share(case.bound),
    }

"""The report of `memfit compare --budgets`: each policy at each budget."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from memfit.reporting.tables import add_row, exact_bytes, new_table
from memfit.units import format_bytes, format_share


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One policy at one budget. Where it finds no plan, `overhead` is None and `required_bytes` the budget it needs."""

    policy: str
    budget_bytes: int
    overhead: float | None
    peak_bytes: int
    copied_bytes: int
    required_bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """The cells of one trace, by budget and then by policy."""

    file: str
    machine: str
    unswapped_bytes: int
    budgets_bytes: tuple[int, ...]
    policies: tuple[str, ...]
    cells: tuple[PolicyCell, ...]


def to_text(comparison: PolicyComparison) -> RenderableType:
    """Return `comparison` as a table: a row a policy, a column a budget."""
    peak = comparison.unswapped_bytes
    shares = [f"{format_bytes(b)} ({100 * b / max(peak, 1):.0f} %)" for b in comparison.budgets_bytes]
    table = new_table(f"Added time on {comparison.machine}; {exact_bytes(peak)} without a plan", "policy", *shares)
    for column in table.columns[1:]:
        column.justify = "right"
    for policy in comparison.policies:
        add_row(table, policy, *(_added(cell) for cell in comparison.cells if cell.policy == policy))
    return table


def _added(cell: PolicyCell) -> str:
    if cell.overhead is not None:
        return format_share(cell.overhead)
    return f"needs {format_bytes(cell.required_bytes)}" if cell.required_bytes else "none"

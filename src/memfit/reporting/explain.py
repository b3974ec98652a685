"""The report of `memfit explain`: the smallest budget and what sets it, a plan's totals, and what more memory buys."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.reporting.names import OpInfo, TensorInfo, full_op, short_line, tensor_text
from memfit.reporting.tables import add_row, exact_bytes, new_table
from memfit.units import format_bytes, format_share, format_us

_MOST_NEEDS = 8  # as text; JSON has all


@dataclass(frozen=True, slots=True)
class NeedInfo:
    """A storage that has to be in the arena at once with others, its bytes there, and the reason."""

    tensor: TensorInfo
    held_bytes: int
    cause: str


@dataclass(frozen=True, slots=True)
class FloorInfo:
    """The smallest feasible budget, the op that sets it, and the storages in the arena then, the largest first.

    `at_op_bytes` of them the op uses or allocates.
    """

    budget_bytes: int
    op: OpInfo
    at_op_bytes: int
    pinned_bytes: int
    needs: tuple[NeedInfo, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best known at one budget, as parts of the computation: 0.1 is 10 %.

    `added` is None if no plan was found, `bound` is None if no plan can meet the budget.
    """

    budget_bytes: int
    added: float | None
    waits: float | None
    reruns: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class LineRow:
    """What becomes of the storages of one line and category, and what that costs.

    Attributes:
        decision: "swapped", "recomputed", or "kept" at the peak.
        tensor: The largest of them.
        made_by: The name of the op that allocated that; "" if none did within the iteration.
        absences: The swaps or remakings; of what is kept the storages.
        size_bytes: The sum of their bytes.
        added_us: What ops wait for their copies, or what their re-runs take.
    """

    decision: str
    tensor: TensorInfo
    made_by: str
    absences: int
    size_bytes: int
    added_us: float


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A plan in numbers.

    Attributes:
        policy: The policy that made it.
        kept_bytes: Of the bytes live at the peak, those in the arena then.
        swapped_bytes: Those in the tier then.
        recomputed_bytes: Those that are nowhere then.
        swaps: The number of swaps in an iteration.
        bytes_out: The bytes that they copy out; as many come in.
        remakings: The number of remakings.
        remade_bytes: The bytes that are dropped and made again.
        drops_for_good: The number of storages that are dropped after their last use, and not made again.
        bytes_for_good: Their bytes.
        reruns: The number of ops that run again.
        compute_us: Microseconds of the iteration's own ops.
        wait_us: Microseconds that ops wait for copies.
        rerun_us: Microseconds of the ops that run again.
        at_budget: The same as parts of the computation, with the time bound.
        neighbours: The same at less and at more memory.
        lines: What costs most bytes, by decision.
    """

    policy: str
    kept_bytes: int
    swapped_bytes: int
    recomputed_bytes: int
    swaps: int
    bytes_out: int
    remakings: int
    remade_bytes: int
    drops_for_good: int
    bytes_for_good: int
    reruns: int
    compute_us: float
    wait_us: float
    rerun_us: float
    at_budget: Outcome
    neighbours: tuple[Outcome, ...]
    lines: tuple[LineRow, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A trace under a budget; `plan` is None if there is none, and `refused` says why."""

    script: str
    machine: str
    budget_bytes: int
    peak_bytes: int
    peak_op: OpInfo
    floor: FloorInfo
    plan: PlanFigures | None
    refused: str


def to_text(report: Explanation) -> RenderableType:
    """Return `report` for a terminal."""
    parts = [_floor(report)]
    if report.plan is None:
        return Group(*parts)
    parts += [_totals(report, report.plan), _budgets(report, report.plan), _lines(report.plan)]
    return Group(*parts)


def _floor(report: Explanation) -> RenderableType:
    floor = report.floor
    share = 100 * floor.budget_bytes / max(report.peak_bytes, 1)
    heading = (
        f"Smallest feasible budget, with swaps and recomputation: {exact_bytes(floor.budget_bytes)}, "
        f"{share:.1f} % of the peak, set by {full_op(floor.op)}"
    )
    table = new_table("", "bytes", "storage", "why it is there")
    for need in floor.needs[:_MOST_NEEDS]:
        add_row(table, format_bytes(need.held_bytes), tensor_text(need.tensor), need.cause)
    rest = floor.needs[_MOST_NEEDS:]
    if rest:
        add_row(table, format_bytes(sum(need.held_bytes for need in rest)), f"{len(rest)} smaller storages", "")
    if floor.pinned_bytes:
        add_row(table, format_bytes(floor.pinned_bytes), "pinned bytes of no storage", "cannot leave at all")
    table.title, table.show_header = None, False
    return Group(Text(heading), Padding(table, (0, 0, 0, 2)))


def _totals(report: Explanation, plan: PlanFigures) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    bound = plan.at_budget.bound or 0.0
    added = plan.at_budget.added or 0.0
    rows = (
        ("plan", f"{plan.policy} on {report.machine}, budget {exact_bytes(report.budget_bytes)}"),
        ("peak", f"{exact_bytes(report.peak_bytes)} live in {full_op(report.peak_op)}: "
         f"{format_bytes(plan.kept_bytes)} kept, {format_bytes(plan.swapped_bytes)} swapped, "
         f"{format_bytes(plan.recomputed_bytes)} recomputed"),
        ("iteration", f"{plan.swaps} swaps of {format_bytes(plan.bytes_out)}, {plan.remakings} remakings of "
         f"{format_bytes(plan.remade_bytes)} by {plan.reruns} re-runs{_for_good(plan)}"),
        ("added time", f"{format_share(added)} on {format_us(plan.compute_us)}: waits {format_us(plan.wait_us)}, "
         f"re-runs {format_us(plan.rerun_us)}"),
        ("time bound", f"{format_share(bound)}: no plan adds less, and this one is "
         f"{100 * max(added - bound, 0.0):.2f} points above it"),
    )  # fmt: skip
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    return Padding(grid, (1, 0))


def _for_good(plan: PlanFigures) -> str:
    dropped = f", {plan.drops_for_good} drops for good of {format_bytes(plan.bytes_for_good)}"
    return dropped if plan.drops_for_good else ""


def _budgets(report: Explanation, plan: PlanFigures) -> RenderableType:
    table = new_table("What memory buys", "budget", "of the peak", "added time", "waits", "re-runs", "time bound")
    for column in table.columns:
        column.justify = "right"
    for one in sorted((*plan.neighbours, plan.at_budget), key=lambda each: each.budget_bytes):
        cells = [_share(part, "none found") for part in (one.added, one.waits, one.reruns)]
        share = f"{100 * one.budget_bytes / max(report.peak_bytes, 1):.1f} %"
        add_row(table, format_bytes(one.budget_bytes), share, *cells, _share(one.bound, "no plan"))
    return table


def _lines(plan: PlanFigures) -> RenderableType:
    table = new_table("Most bytes by decision", "decision", "bytes", "number", "added", "what", "made by", "at")
    for row in plan.lines:
        added = format_us(row.added_us) if row.added_us > 0 else ""
        what = f"{row.tensor.category} #{row.tensor.storage}{' ...' if row.absences > 1 else ''}"
        cells = (format_bytes(row.size_bytes), str(row.absences), added, what, row.made_by)
        add_row(table, row.decision, *cells, short_line(row.tensor.source) if row.tensor.source else "")
    return Padding(table, (1, 0, 0, 0))


def _share(share: float | None, missing: str) -> str:
    return missing if share is None else format_share(share)

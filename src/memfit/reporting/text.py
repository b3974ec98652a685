"""Reports as text for a terminal."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.ir import Demand
from memfit.reporting.compare import Comparison
from memfit.reporting.info import GapInfo, MinimumBudget, OpInfo, TensorInfo, TraceInfo
from memfit.reporting.policies import Cell, PolicyComparison
from memfit.units import format_bytes, format_share, format_us

_NUMERIC = (
    "bytes",
    "share",
    "storages",
    "unused for",
    "footprint",
    "over the peak",
    "fragmentation",
    "driver allocations",
    "us a call",
)


_WORKSPACE = "outputs and scratch of the op"
_FIXED = "of others that cannot leave the arena then: pinned, or made outside any op and not used yet"
_SMALL = "of other small storages, which leave only if nothing else makes room"
_NOT_COVERED = (
    "Not covered: ops after the iteration that need more (evaluation, batches of other sizes), and holes beside "
    "storages that cannot move."
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line (rich would exit with code 1)."""
        raise BrokenPipeError


def print_info(info: TraceInfo, console: Console | None = None) -> None:
    """Print `info` on `console` (default: stdout)."""
    (console or _Console()).print(render_info(info))


def render_info(info: TraceInfo) -> RenderableType:
    """Return `info` as something rich can print."""
    parts = [_summary(info), _live_table(info)]
    if info.largest_gaps:
        parts.append(_gap_table(info.largest_gaps))
    return Group(*parts, _minimum(info.minimum))


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print `comparison` on `console` (default: stdout)."""
    (console or _Console()).print(render_comparison(comparison))


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return `comparison` as something rich can print."""
    peak = _exact(comparison.peak_live_bytes)
    title = f"{comparison.storages} storages, {comparison.calls} mallocs and frees, {peak} live at the peak"
    columns = ("allocator", "footprint", "over the peak", "fragmentation", "driver allocations", "us a call")
    table = _table(title, *columns)
    table.columns[0].no_wrap = True
    for row in comparison.rows:
        _add(
            table,
            row.allocator,
            format_bytes(row.footprint_bytes),
            f"{100 * row.over_peak:+.2f} %",
            f"{100 * row.fragmentation:.1f} %",
            str(row.driver_allocations),
            f"{row.us_per_call:.2f}",
        )
    return table


def print_policies(comparison: PolicyComparison, console: Console | None = None) -> None:
    """Print `comparison` on `console` (default: stdout)."""
    (console or _Console()).print(render_policies(comparison))


def render_policies(comparison: PolicyComparison) -> RenderableType:
    """Return `comparison` as something rich can print: a row a policy, a column a budget."""
    peak = comparison.unswapped_bytes
    shares = [f"{format_bytes(b)} ({100 * b / max(peak, 1):.0f} %)" for b in comparison.budgets_bytes]
    table = _table(f"Added time on {comparison.machine}; {_exact(peak)} without swapping", "policy", *shares)
    for column in table.columns[1:]:
        column.justify = "right"
    for policy in comparison.policies:
        _add(table, policy, *(_added(cell) for cell in comparison.cells if cell.policy == policy))
    return table


def _added(cell: Cell) -> str:
    if cell.overhead is not None:
        return format_share(cell.overhead)
    return f"needs {format_bytes(cell.required_bytes)}" if cell.required_bytes else "none"


def _summary(info: TraceInfo) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    rows = (
        ("script", info.script or "unknown"),
        ("iteration", f"{info.iteration} on {info.device}, torch {info.torch_version}"),
        ("ops", f"{info.op_count} in {format_us(info.duration_us)}, {info.storage_count} storages"),
        ("peak", f"{_exact(info.peak_bytes)} live in {_op(info.peak_op)}"),
        ("lower bound", f"{_exact(info.lower_bound_bytes)} of arena if nothing moves"),
    )
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    return grid


def _live_table(info: TraceInfo) -> RenderableType:
    table = _table("Live at the peak", "category", "bytes", "share", "storages", "allocated at")
    for row in info.live_at_peak:
        share = f"{100 * row.size_bytes / max(info.peak_bytes, 1):.1f} %"
        sources = "\n".join(f"{_line(s.source)} ({format_bytes(s.size_bytes)})" for s in row.top_sources)
        _add(table, row.category, format_bytes(row.size_bytes), share, str(row.storages), sources)
    return table


def _gap_table(largest: tuple[GapInfo, ...]) -> RenderableType:
    table = _table("Largest gaps (bytes x time)", "storage", "bytes", "unused for", "from", "until")
    for gap in largest:
        until = f"{_brief(gap.before)}{', next iteration' if gap.cyclic else ''}"
        size = format_bytes(gap.tensor.size_bytes)
        _add(table, _tensor(gap.tensor), size, format_us(gap.duration_us), _brief(gap.after), until)
    return table


def _minimum(minimum: MinimumBudget) -> RenderableType:
    before, own = minimum.before, minimum.iteration_bytes
    if before is not None and minimum.budget_bytes > own:
        at = f" at {_line(before.source)}" if before.source else ""
        lines = [
            f"Minimum feasible budget: {_exact(minimum.budget_bytes)}, set before the iteration by {before.name}{at}"
        ]
        lines += _parts((before.operand_bytes, "that it uses"), (before.workspace_bytes, _WORKSPACE))
        lines += _kept(before)
        lines.append(f"The iteration itself needs {_exact(own)}, set by {_op(minimum.op)}")
    else:
        within = "" if before is None else f"; no op before the iteration needed more than {_exact(before.total_bytes)}"
        lines = [f"Minimum feasible budget: {_exact(own)}, set in the iteration by {_op(minimum.op)}{within}"]
    return Text("\n".join([*lines, *_needs(minimum), _NOT_COVERED]))


def _needs(minimum: MinimumBudget) -> list[str]:
    """Return a line for each part of what the iteration's most demanding op needs."""
    lines = _parts(*((t.size_bytes, _tensor(t)) for t in minimum.largest_operands))
    more = minimum.operand_count - len(minimum.largest_operands)
    if more:
        lines.append(f"  {'':>10}  and {more} smaller storages")
    lines += _parts((minimum.workspace_bytes, _WORKSPACE))
    return lines + _kept(minimum)


def _kept(what: MinimumBudget | Demand) -> list[str]:
    """Return a line for each kind of bytes that the op does not use and that stay all the same."""
    return _parts(*(part for part in ((what.fixed_bytes, _FIXED), (what.small_bytes, _SMALL)) if part[0]))


def _parts(*parts: tuple[int, str]) -> list[str]:
    return [f"  {format_bytes(size_bytes):>10}  {what}" for size_bytes, what in parts]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMERIC else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row of plain text: names of files may hold what rich would read as markup."""
    table.add_row(*(Text(cell) for cell in cells))


def _op(op: OpInfo) -> str:
    return f"{_brief(op)} ({op.phase}, {_line(op.source)})"


def _brief(op: OpInfo) -> str:
    return f"op {op.index} {op.name}"


def _tensor(tensor: TensorInfo) -> str:
    return f"{tensor.category} {tensor.storage} ({_line(tensor.source)})"


def _line(source: str) -> str:
    """Return a source line with its path as short as it can be told by; `--json` has the whole of it."""
    if not source:
        return "unknown line"
    for folder in (f"{os.getcwd()}/", "site-packages/"):
        if folder in source:
            return source.rpartition(folder)[2]
    parts = source.split("/")
    return source if len(parts) <= 3 else f".../{'/'.join(parts[-2:])}"


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"

"""The report of `memfit info`: the memory use of a recorded iteration."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.ir import Demand
from memfit.reporting.names import OpInfo, TensorInfo, brief_op, full_op, short_line, tensor_text
from memfit.reporting.tables import add_row, exact_bytes, new_table
from memfit.units import format_bytes, format_us

_IN_SLICES = "in slices, since it does not fit at once; no plan is made for so small a budget"
_WORKSPACE = "outputs and scratch of the op"
_FIXED = "of others that cannot leave the arena then: pinned, or made outside any op and not used yet"
_SMALL = "of other small storages, which leave only if nothing else makes room"
_NOT_COVERED = (
    "Not covered: ops after the iteration that need more (evaluation, batches of other sizes), and holes beside "
    "storages that cannot move."
)


@dataclass(frozen=True, slots=True)
class SourceBytes:
    """Live bytes that one source line allocated."""

    source: str
    size_bytes: int
    storages: int


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Live bytes of one category, with the source lines that allocated most of them.

    `stored_share` is the part that a tier which compresses left of them, as far as they went there; None if none did.
    """

    category: str
    size_bytes: int
    storages: int
    top_sources: tuple[SourceBytes, ...]
    stored_share: float | None = None


@dataclass(frozen=True, slots=True)
class GapInfo:
    """A gap with the storage it belongs to and the ops around it."""

    tensor: TensorInfo
    after: OpInfo
    before: OpInfo
    duration_us: float
    cyclic: bool
    returns: bool


@dataclass(frozen=True, slots=True)
class MinimumBudget:
    """The smallest feasible budget of the iteration and of what ran before it.

    `iteration_bytes` is the iteration's own, with the op that sets it and the largest storages that op needs. Of what
    the op does not use, `fixed_bytes` cannot leave the arena meanwhile, and `small_bytes` leave only if nothing else
    makes room. `split_bytes` do for the op in slices; 0 where it runs whole.
    `before` needed the most before the iteration; None if nothing ran there, or the trace does not say.
    """

    budget_bytes: int
    iteration_bytes: int
    before: Demand | None
    op: OpInfo
    workspace_bytes: int
    split_bytes: int
    fixed_bytes: int
    small_bytes: int
    operand_count: int
    largest_operands: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """One trace in numbers. `lower_bound_bytes` is the peak with each storage rounded up to the alignment."""

    script: str
    iteration: int
    device: str
    torch_version: str
    op_count: int
    storage_count: int
    duration_us: float
    peak_bytes: int
    peak_op: OpInfo
    lower_bound_bytes: int
    live_at_peak: tuple[CategoryBytes, ...]
    largest_gaps: tuple[GapInfo, ...]
    minimum: MinimumBudget


def to_text(info: TraceInfo) -> RenderableType:
    """Return `info` for a terminal."""
    parts = [_summary(info), _live_table(info)]
    if info.largest_gaps:
        parts.append(_gap_table(info.largest_gaps))
    return Group(*parts, _minimum(info.minimum))


def _summary(info: TraceInfo) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    rows = (
        ("script", info.script or "unknown"),
        ("iteration", f"{info.iteration} on {info.device}, torch {info.torch_version}"),
        ("ops", f"{info.op_count} in {format_us(info.duration_us)}, {info.storage_count} storages"),
        ("peak", f"{exact_bytes(info.peak_bytes)} live in {full_op(info.peak_op)}"),
        ("lower bound", f"{exact_bytes(info.lower_bound_bytes)} of arena if nothing moves"),
    )
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    return grid


def _live_table(info: TraceInfo) -> RenderableType:
    is_compressed = any(row.stored_share is not None for row in info.live_at_peak)
    in_tier = ["in the tier"] if is_compressed else []
    table = new_table("Live at the peak", "category", "bytes", "share", *in_tier, "storages", "allocated at")
    for row in info.live_at_peak:
        share = f"{100 * row.size_bytes / max(info.peak_bytes, 1):.1f} %"
        stored = "" if row.stored_share is None else f"x{row.stored_share:.2f}"
        sources = "\n".join(f"{short_line(s.source)} ({format_bytes(s.size_bytes)})" for s in row.top_sources)
        cells = [format_bytes(row.size_bytes), share, *([stored] if is_compressed else []), str(row.storages), sources]
        add_row(table, row.category, *cells)
    return table


def _gap_table(largest: tuple[GapInfo, ...]) -> RenderableType:
    table = new_table("Largest gaps (bytes x time)", "storage", "bytes", "unused for", "from", "until")
    for gap in largest:
        freed = "" if gap.returns else "freed before "
        until = f"{freed}{brief_op(gap.before)}{', next iteration' if gap.cyclic else ''}"
        size = format_bytes(gap.tensor.size_bytes)
        add_row(table, tensor_text(gap.tensor), size, format_us(gap.duration_us), brief_op(gap.after), until)
    return table


def _minimum(minimum: MinimumBudget) -> RenderableType:
    before, own = minimum.before, minimum.iteration_bytes
    if before is not None and minimum.budget_bytes > own:
        at = f" at {short_line(before.source)}" if before.source else ""
        budget = exact_bytes(minimum.budget_bytes)
        lines = [f"Minimum feasible budget: {budget}, set before the iteration by {before.name}{at}"]
        whole = ((before.operand_bytes, "that it uses"), (before.workspace_bytes, _WORKSPACE))
        lines += _parts(*(whole if not before.split_bytes else ((before.split_bytes, _IN_SLICES),)))
        lines += _kept(before)
        lines.append(f"The iteration itself needs {exact_bytes(own)}, set by {full_op(minimum.op)}")
    else:
        within = (
            "" if before is None else f"; no op before the iteration needed more than {exact_bytes(before.total_bytes)}"
        )
        lines = [f"Minimum feasible budget: {exact_bytes(own)}, set in the iteration by {full_op(minimum.op)}{within}"]
    return Text("\n".join([*lines, *_needs(minimum), _NOT_COVERED]))


def _needs(minimum: MinimumBudget) -> list[str]:
    """Return a line for each part of what the iteration's most demanding op needs."""
    if minimum.split_bytes:
        return [*_parts((minimum.split_bytes, _IN_SLICES)), *_kept(minimum)]
    lines = _parts(*((t.size_bytes, tensor_text(t)) for t in minimum.largest_operands))
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

"""The report of `memfit explain` on storages: what the plan does in each gap, what else it could do, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.reporting.names import OpInfo, TensorInfo, brief_op, full_op, tensor_text
from memfit.reporting.tables import exact_bytes
from memfit.units import format_bytes, format_us

_MOST = 20  # storages as text; JSON has all


@dataclass(frozen=True, slots=True)
class SwapAbsence:
    """A swap in a gap: leaves after one op, and is back before another, or freed by then.

    The four times are those of its copies, in microseconds from the iteration's beginning, beyond its end for one that
    runs in the next; None for a copy that never ran. `wait_us` is what ops wait for them.
    """

    leaves_after: OpInfo
    back_before: OpInfo
    returns: bool
    out_start_us: float | None
    out_end_us: float | None
    in_start_us: float | None
    in_end_us: float | None
    wait_us: float


@dataclass(frozen=True, slots=True)
class RemakeAbsence:
    """A remaking in a gap: dropped after one op, made again before another by `ops`.

    One that does not return is freed before that op, and would be made by `ops` only if somebody asked for it.
    `rerun_us` is their time; `shared_us` the part that counts here, where some of them run for other storages too.
    """

    dropped_after: OpInfo
    made_before: OpInfo
    ops: tuple[OpInfo, ...]
    rerun_us: float
    shared_us: float
    returns: bool = True


@dataclass(frozen=True, slots=True)
class KeepCost:
    """Memory in a gap: the most live bytes, with all in the arena, and the most that the arena holds by the plan."""

    live_bytes: int
    fullest: OpInfo
    held_bytes: int
    budget_bytes: int

    @property
    def is_tight(self) -> bool:
        """Whether not everything can stay."""
        return self.live_bytes > self.budget_bytes


@dataclass(frozen=True, slots=True)
class SwapCost:
    """A swap's price in a gap.

    Attributes:
        out_us: Microseconds of the copy out, alone.
        in_us: Microseconds of the copy in, alone.
        least_wait_us: What the gap is too short by for both.
        planned_us: Microseconds of the gap by the plan, waits and re-runs included.
        out_busy: The part of that in which other copies of the plan are on their way out: 1 is a full link.
        in_busy: The same of those in.
    """

    out_us: float
    in_us: float
    least_wait_us: float
    planned_us: float
    out_busy: float
    in_busy: float


@dataclass(frozen=True, slots=True)
class RemakeCost:
    """A remaking's price at the end of a gap: its ops and microseconds; or why it cannot be, and the op at fault."""

    rerun_us: float | None
    ops: tuple[OpInfo, ...]
    refusal: str
    refused_op: OpInfo | None
    refused_storage: TensorInfo | None


@dataclass(frozen=True, slots=True)
class GapExplanation:
    """One gap: what is done in it (`decision`), why, and what each way costs. A life's last gap has no return."""

    after: OpInfo
    before: OpInfo
    duration_us: float
    cyclic: bool
    returns: bool
    decision: str
    why: str
    swaps: tuple[SwapAbsence, ...]
    remakings: tuple[RemakeAbsence, ...]
    keep: KeepCost
    swap: SwapCost
    remake: RemakeCost


@dataclass(frozen=True, slots=True)
class StorageExplanation:
    """One storage.

    Attributes:
        tensor: The storage.
        made_by: The op that allocated it; None if it was there before, or was allocated between two ops.
        alive_from: The first op of its life; None if it was there before the iteration.
        alive_until: The last op of its life; None if it outlives the iteration.
        last_use: The last op that uses it; None if none does.
        unused_us: Microseconds from then to its end, in which it stays; 0 if it outlives the iteration and recurs.
        gaps: Its gaps, in order.
    """

    tensor: TensorInfo
    made_by: OpInfo | None
    alive_from: OpInfo | None
    alive_until: OpInfo | None
    last_use: OpInfo | None
    unused_us: float
    gaps: tuple[GapExplanation, ...]


@dataclass(frozen=True, slots=True)
class StoragesReport:
    """The storages that match a pattern, the largest first."""

    pattern: str
    policy: str
    machine: str
    budget_bytes: int
    matched: int
    matched_bytes: int
    storages: tuple[StorageExplanation, ...]


def to_text(report: StoragesReport) -> RenderableType:
    """Return `report` for a terminal."""
    one = report.matched == 1
    heading = (
        f"{report.matched} {'storage' if one else 'storages'} of {format_bytes(report.matched_bytes)} "
        f"{'matches' if one else 'match'} {report.pattern!r}; "
        f"{report.policy} on {report.machine}, budget {exact_bytes(report.budget_bytes)}"
    )
    parts: list[RenderableType] = [Text(heading)]
    parts += [_storage(one) for one in report.storages[:_MOST]]
    if report.matched > _MOST:
        parts.append(Text(f"and {report.matched - _MOST} smaller ones: --json has all"))
    return Group(*parts)


def _storage(one: StorageExplanation) -> RenderableType:
    begin = f"from {brief_op(one.alive_from)}" if one.alive_from else "from before the iteration"
    end = f"to {brief_op(one.alive_until)}" if one.alive_until else "beyond the iteration's end"
    rows = [("alive", f"{begin} {end}")]
    if one.made_by:
        rows.append(("made by", full_op(one.made_by)))
    if one.unused_us > 0 and one.last_use:
        unused = f"{format_us(one.unused_us)} at its end, after {brief_op(one.last_use)}: it stays until it is freed"
        rows.append(("unused", unused))
    if not one.gaps:
        rows.append(("gaps", "none: no op runs between two of its uses, so that it always stays"))
    heading = f"#{one.tensor.storage}  {tensor_text(one.tensor)}: {exact_bytes(one.tensor.size_bytes)}"
    gaps = (_gap(gap) for gap in one.gaps)
    return Padding(Group(Text(heading, style="bold"), _grid(rows), *gaps), (1, 0, 0, 0))


def _gap(gap: GapExplanation) -> RenderableType:
    until = f"{brief_op(gap.before)}{' of the next iteration' if gap.cyclic else ''}"
    if not gap.returns:
        until = f"it is freed, before {until}"
    rows = [(gap.decision, gap.why)]
    rows += [("", _swap(one)) for one in gap.swaps] + [("", _remaking(one)) for one in gap.remakings]
    rows.append(("to keep", _keep(gap.keep)))
    if gap.decision != "kept" or gap.keep.is_tight:
        rows += [("to swap", _swap_cost(gap.swap)), ("to remake", _remake_cost(gap.remake))]
    heading = f"after {brief_op(gap.after)}, until {until}: {format_us(gap.duration_us)}"
    return Padding(Group(Text(heading), _grid(rows)), (0, 0, 0, 2))


def _grid(rows: Iterable[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label), Text(value))
    return Padding(grid, (0, 0, 0, 2))


def _swap(one: SwapAbsence) -> str:
    copies = (
        f"{way} {format_us(begin)} to {format_us(end)}"
        for way, begin, end in (("out", one.out_start_us, one.out_end_us), ("in", one.in_start_us, one.in_end_us))
        if begin is not None and end is not None
    )
    wait = f"ops wait {format_us(one.wait_us)} for it" if one.wait_us > 0 else "no op waits for it"
    end = "back" if one.returns else "freed"
    away = f"away after {brief_op(one.leaves_after)} and {end} before {brief_op(one.back_before)}"
    return f"{away}; copied {', '.join(copies)}; {wait}"


def _remaking(one: RemakeAbsence) -> str:
    if not one.returns:
        return f"dropped after {brief_op(one.dropped_after)} and freed before {brief_op(one.made_before)}: nothing runs"
    ops = ", ".join(brief_op(op) for op in one.ops)
    shared = f", {format_us(one.shared_us)} of it for this storage" if one.shared_us < one.rerun_us else ""
    away = f"dropped after {brief_op(one.dropped_after)}, made again before {brief_op(one.made_before)}"
    return f"{away} by {ops}: {format_us(one.rerun_us)}{shared}"


def _keep(cost: KeepCost) -> str:
    over = cost.live_bytes - cost.budget_bytes
    room = f"{format_bytes(over)} over the budget" if over > 0 else f"{format_bytes(-over)} below the budget"
    return (
        f"{format_bytes(cost.live_bytes)} live at the fullest, {brief_op(cost.fullest)}: {room}; "
        f"by the plan {format_bytes(cost.held_bytes)} at most"
    )


def _swap_cost(cost: SwapCost) -> str:
    short = f"; the gap is {format_us(cost.least_wait_us)} too short" if cost.least_wait_us > 0 else ""
    busy = f"{100 * cost.out_busy:.0f} % out, {100 * cost.in_busy:.0f} % in"
    into = f", {format_us(cost.in_us)} in" if cost.in_us > 0 else ""
    return f"{format_us(cost.out_us)} out{into}{short}; link busy with other copies: {busy}"


def _remake_cost(cost: RemakeCost) -> str:
    if cost.rerun_us == 0 and not cost.ops:
        return "nothing: no op uses it any more"
    if cost.rerun_us is not None:
        return f"{format_us(cost.rerun_us)} of {', '.join(brief_op(op) for op in cost.ops)}"
    at = f": {full_op(cost.refused_op)}" if cost.refused_op else ""
    whose = f", for {tensor_text(cost.refused_storage)}" if cost.refused_storage else ""
    return f"not possible, {cost.refusal}{at}{whose}"

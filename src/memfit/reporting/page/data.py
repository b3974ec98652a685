"""What the report shows, as columns of numbers: the page draws them, and reckons nothing but where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memfit.arrays import Int64Array
from memfit.ir import Plan, Timeline, Trace, Transformed
from memfit.reporting.names import OpInfo


@dataclass(frozen=True, slots=True)
class Head:
    """What the page begins with.

    Attributes:
        peak_bytes: The most that is alive at once, as the arena rounds it.
        peak_op: The op meanwhile.
        floor_bytes: The smallest budget.
        floor_op: The op that sets it.
        budget_bytes: The plan's budget; None without a plan.
        verdict: What there is to know, in one sentence.
        next_command: What to type next.
    """

    peak_bytes: int
    peak_op: OpInfo
    floor_bytes: int
    floor_op: OpInfo
    budget_bytes: int | None
    verdict: str
    next_command: str


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Rectangles of the address picture: storage[i] has its bytes from offset[i] on in ops [begin[i], end[i])."""

    storage: Sequence[int]
    begin: Sequence[int]
    end: Sequence[int]
    offset: Sequence[int]
    footprint_bytes: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One timeline of the plan, foreseen or measured. `made` is the trace that it is of, in which ops run again."""

    title: str
    made: Transformed
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Budgets (bytes), falling, and what each adds as a part of the computation (infinite: no plan is found)."""

    machine: str
    budgets: Sequence[int]
    added: Sequence[float]


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What one line has at the peak: bytes, storages, their mean lifetime and largest gap (microseconds)."""

    source: str
    category: str
    size_bytes: int
    storages: int
    lifetime_us: float
    gap_us: float


@dataclass(frozen=True, slots=True)
class GapRow:
    """A gap of a storage, between the ops `after` and `before`, in microseconds; `why` it stays or leaves in it."""

    after: int
    before: int
    duration_us: float
    why: str


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run, as words by name; its budget in bytes, None if it had none."""

    budget_bytes: int | None
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """The bytes of one line at the peak of another iteration, before, and of this one, after."""

    source: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The peak (bytes) of another iteration, called `name`, beside this one's by line: the largest change first.

    The curves have the most alive in each of a few equal parts of the time, there and here.
    """

    name: str
    peak_bytes: int
    own_peak_bytes: int
    rows: Sequence[ChangeRow]
    curve: Sequence[int]
    own_curve: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """A report.

    Attributes:
        trace: The recorded iteration.
        head: What it begins with.
        live: For each category, by its name, the bytes alive in each op when most are.
        arena: The bytes that the plan has in the arena, by op; None without a plan.
        boxes: The addresses.
        owners: Who owns the peak, the largest first.
        gaps: By storage, the gap in which it leaves, or its widest.
        plan: The plan; None if there is none. Its swaps are of the lanes' trace.
        lanes: Its timelines.
        what_if: What other budgets would cost; None if that was not asked.
        changes: What is other than in another iteration; None if there is none to compare with.
        run: The figures of a run; None if it is not of one.
    """

    trace: Trace
    head: Head
    live: dict[str, Int64Array]
    arena: Int64Array | None
    boxes: Boxes
    owners: Sequence[OwnerRow]
    gaps: Mapping[int, GapRow]
    plan: Plan | None = None
    lanes: Sequence[Lane] = ()
    what_if: WhatIf | None = None
    changes: Changes | None = None
    run: RunFigures | None = None

"""The report of `memfit compare`: one file's mallocs and frees in every allocator, as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from memfit.baselines.allocators import Outcome, names, run
from memfit.baselines.allocators.replay import Packed, plan
from memfit.errors import UsageError
from memfit.events import Events, live_after_steps
from memfit.planning.packing import Lifetimes, pack


def memfit_packer(events: Events, *, alignment: int = 1, effort: float = 1.0) -> Packed:
    """Place every storage with memfit's own packer; at exact sizes, as the other planners do, unless told.

    `alignment` in bytes, `effort` in seconds.
    """
    steps = np.array(events.steps, dtype=np.int64)
    lower, upper = (np.full(len(events.sizes), len(steps), dtype=np.int64) for _ in range(2))
    lower[steps[steps >= 0]] = np.flatnonzero(steps >= 0)
    upper[~steps[steps < 0]] = np.flatnonzero(steps < 0)
    rows = np.flatnonzero(lower < len(steps))  # storages of no bytes take no step
    size = np.array(events.sizes, dtype=np.int64)[rows]
    packing = pack(Lifetimes(lower[rows], upper[rows], size), alignment=alignment, effort=effort)
    offsets = dict(zip(rows.tolist(), packing.offsets.tolist(), strict=True))
    return Packed(offsets, packing.footprint, 0, len(steps))


CONTENDERS: Mapping[str, Callable[[Events], Outcome]] = {
    **{name: partial(run, name) for name in names()},
    "memfit": partial(plan, "memfit", memfit_packer),
}
"""Whatever can be compared, by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One allocator's figures; see `memfit.baselines.allocators.Outcome` for what each is."""

    allocator: str
    footprint_bytes: int
    over_peak: float
    fragmentation: float
    driver_allocations: int
    us_per_call: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of one file, the smallest footprint first. `calls` counts its mallocs and frees."""

    file: str
    storages: int
    calls: int
    peak_live_bytes: int
    rows: tuple[Row, ...]


def chosen(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for one that is not known."""
    if text.strip() == "all":
        return tuple(CONTENDERS)
    wanted = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in wanted if name not in CONTENDERS]
    if unknown or not wanted:
        what = f"there is no allocator {unknown[0]!r}" if unknown else "--allocators names no allocator"
        raise UsageError(what, why=f"there are {', '.join(CONTENDERS)}", remedy="--allocators all")
    return tuple(wanted)


def compare(file: str, events: Events, allocators: Sequence[str]) -> Comparison:
    """Return what each of `allocators` does with `events`; raises KeyError for a name that is not known."""
    rows = [_row(CONTENDERS[name](events)) for name in allocators]
    return Comparison(
        file=file,
        storages=len(events.sizes),
        calls=len(events.steps),
        peak_live_bytes=max(live_after_steps(events), default=0),
        rows=tuple(sorted(rows, key=lambda row: (row.footprint_bytes, row.allocator))),
    )


def to_json(comparison: Comparison) -> str:
    """Return `comparison` as a JSON object, with the names of the dataclasses' fields."""
    return json.dumps(asdict(comparison), indent=2)


def _row(outcome: Outcome) -> Row:
    return Row(
        allocator=outcome.allocator,
        footprint_bytes=outcome.footprint_bytes,
        over_peak=outcome.over_peak,
        fragmentation=outcome.fragmentation,
        driver_allocations=outcome.driver_allocations,
        us_per_call=outcome.us_per_call,
    )

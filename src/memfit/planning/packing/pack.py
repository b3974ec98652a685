"""`pack`: the native packer behind checks of what goes in and of every plan that comes out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memfit import _native
from memfit.arrays import Int64Array
from memfit.errors import BudgetError, InputError
from memfit.planning.packing.lifetimes import FREE, Lifetimes
from memfit.units import format_bytes
from memfit.validate import check_placements, require_valid

Progress = Callable[[float, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Placements, and how good they are.

    `offsets` (bytes) has one entry for each slot, lifetime by lifetime; `slots` says how many each lifetime has: 1,
    or under a period as many as it spans periods, rounded up. `lower_bound` (bytes) holds for every plan; `gap` is
    how far the footprint is above it. `proven`: no plan is smaller. `method` found the plan: "greedy", "skyline",
    "exact" or "ejection". `clock_stopped`: the clock and not counted work ended the search, so that another run may
    differ.
    """

    offsets: Int64Array
    slots: Int64Array
    footprint: int
    lower_bound: int
    peak_live: int
    proven: bool
    method: str
    clock_stopped: bool
    seconds: float

    @property
    def gap(self) -> float:
        """footprint / lower_bound - 1."""
        return self.footprint / self.lower_bound - 1 if self.lower_bound else 0.0


def pack(
    lifetimes: Lifetimes,
    *,
    capacity: int | None = None,
    alignment: int = 512,
    period: int | None = None,
    effort: float = 1.0,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Packing:
    """Place `lifetimes` with the smallest footprint (bytes) that `effort` (seconds) finds.

    Sizes are rounded up to `alignment` bytes. Under a `period` (ticks) the iteration repeats: a lifetime may run
    over its end into the next one, and one longer than the period takes several slots in turn. Given a `capacity`
    (bytes), the first plan that fits it is returned. `progress(seconds, footprint)` is told each better plan.

    The search counts its work, about a second of one core for each second of `effort`: the plan is the same for
    the same seed on any number of `threads` (all cores by default), unless the clock has to end it 8 % over
    `effort` (`Packing.clock_stopped`). Whatever the effort, one greedy plan is made.

    Every plan is validated before it is returned. Raises InputError on a malformed table, BudgetError if no plan
    within `capacity` was found.
    """
    _check(lifetimes, alignment, period, effort)
    found = _pack(lifetimes, capacity, alignment, period, effort, seed, threads, progress)
    if capacity is not None and found.footprint > capacity:
        raise BudgetError(
            f"no plan within {format_bytes(capacity)} was found",
            why=f"the best found needs {found.footprint} bytes; any needs at least {found.lower_bound}",
            remedy=f"allow {format_bytes(found.footprint)}, or more effort",
            required_bytes=found.lower_bound if found.lower_bound > capacity else found.footprint,
        )
    require_valid(
        check_placements(
            lower=lifetimes.lower,
            upper=lifetimes.upper,
            size_bytes=lifetimes.size,
            offset_bytes=found.offsets,
            slots=found.slots,
            alignment=alignment,
            capacity_bytes=found.footprint if capacity is None else capacity,
            period=period,
            fixed_bytes=lifetimes.offset,
        )
    )
    return found


def _pack(
    lifetimes: Lifetimes,
    capacity: int | None,
    alignment: int,
    period: int | None,
    effort: float,
    seed: int,
    threads: int | None,
    progress: Progress | None,
) -> Packing:
    try:
        found = _native.pack(
            lower=lifetimes.lower,
            upper=lifetimes.upper,
            size_bytes=lifetimes.size,
            offset_bytes=lifetimes.offset,
            alignment=alignment,
            period=period or 0,
            capacity_bytes=capacity,
            effort=effort,
            seed=seed,
            threads=threads or os.cpu_count() or 1,
            progress=progress,
        )
    except ValueError as error:
        raise InputError(f"these lifetimes cannot be packed: {error}") from error
    return Packing(
        offsets=found.offsets_bytes,
        slots=found.slots,
        footprint=found.footprint_bytes,
        lower_bound=found.lower_bound_bytes,
        peak_live=found.peak_bytes,
        proven=found.footprint_bytes <= found.lower_bound_bytes,
        method=found.method,
        clock_stopped=found.clock_stopped,
        seconds=found.seconds,
    )


def _check(lifetimes: Lifetimes, alignment: int, period: int | None, effort: float) -> None:
    if alignment < 1:
        raise InputError(f"the alignment is {alignment}, but must be at least 1 byte")
    if period is not None and period < 1:
        raise InputError(f"the period is {period}, but must be at least 1 tick")
    if not effort >= 0:
        raise InputError(f"the effort is {effort} seconds, but cannot be negative")
    fixed = np.flatnonzero(lifetimes.offset != FREE)
    if not len(fixed):
        return
    long = lifetimes.upper[fixed] - lifetimes.lower[fixed] > (period or np.iinfo(np.int64).max)
    if long.any():
        raise InputError(f"lifetime {int(fixed[np.argmax(long)])} is fixed, but outlives the period")
    violation = check_placements(
        lower=lifetimes.lower[fixed],
        upper=lifetimes.upper[fixed],
        size_bytes=lifetimes.size[fixed],
        offset_bytes=lifetimes.offset[fixed],
        alignment=alignment,
        period=period,
    )
    if violation is not None:
        rows = ", ".join(str(int(fixed[row])) for row in violation.lifetimes)
        raise InputError(f"fixed placements break a promise (lifetimes {rows})", why=str(violation))

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

    Attributes:
        offsets: Bytes; one entry for each slot, lifetime by lifetime.
        slots: The number of slots of each lifetime: 1, or under a period the number of periods it spans, rounded up.
        footprint: The highest used byte.
        lower_bound: Bytes below which no placement can be.
        peak_live: The peak of live bytes.
        proven: Whether no placement is smaller.
        method: The search that found it: "greedy", "skyline", "exact" or "ejection".
        seconds: The wall time of the search.
    """

    offsets: Int64Array
    slots: Int64Array
    footprint: int
    lower_bound: int
    peak_live: int
    proven: bool
    method: str
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
    """Place lifetimes with the smallest footprint that an effort finds: SmartPool's problem (arXiv 1903.06631).

    Every placement is checked by `memfit.validate` before it is returned.

    Arguments:
        lifetimes: The table to place.
        capacity: Bytes; the first placement that fits is returned. None looks for the smallest.
        alignment: Bytes; sizes are rounded up to a multiple of it, and so is every offset.
        period: Ticks after which the iteration repeats: a lifetime may run over its end into the next one, and one
            longer than the period takes several slots in turn. None: time does not repeat.
        effort: Seconds of counted work, about a second of one core for each. One greedy placement is always made.
        seed: The same seed gives the same placement, on any number of threads and however busy the machine is.
        threads: Threads of the search; None takes all cores.
        progress: Is called with the seconds so far and the footprint (bytes) at each better placement.

    Returns:
        The best placement found.

    Raises:
        InputError: The table is malformed.
        BudgetError: No placement within `capacity` was found.
    """
    _check(lifetimes, alignment, period, effort)
    found = _pack(lifetimes, capacity, alignment, period, effort, seed, threads, progress)
    if capacity is not None and found.footprint > capacity:
        raise BudgetError(
            f"no placement within {format_bytes(capacity)} was found",
            why=f"the best one found needs {found.footprint} bytes; every one needs at least {found.lower_bound}",
            remedy=f"allow {format_bytes(found.footprint)}, or spend more effort",
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
        raise InputError("these lifetimes cannot be packed", why=str(error), remedy="correct the table") from error
    return Packing(
        offsets=found.offsets_bytes,
        slots=found.slots,
        footprint=found.footprint_bytes,
        lower_bound=found.lower_bound_bytes,
        peak_live=found.peak_bytes,
        proven=found.footprint_bytes <= found.lower_bound_bytes,
        method=found.method,
        seconds=found.seconds,
    )


def _check(lifetimes: Lifetimes, alignment: int, period: int | None, effort: float) -> None:
    if alignment < 1:
        raise InputError(f"the alignment is {alignment} bytes", remedy="pass 1 or more")
    if period is not None and period < 1:
        raise InputError(f"the period is {period} ticks", remedy="pass 1 or more")
    if not effort >= 0:
        raise InputError(f"the effort is {effort} seconds", remedy="pass 0 or more")
    fixed = np.flatnonzero(lifetimes.offset != FREE)
    if not len(fixed):
        return
    long = lifetimes.upper[fixed] - lifetimes.lower[fixed] > (period or np.iinfo(np.int64).max)
    if long.any():
        raise InputError(f"lifetime {int(fixed[np.argmax(long)])} is fixed, but outlives the period",
                         remedy="leave its offset free, or cut it at the period's end")  # fmt: skip
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
        raise InputError(f"fixed placements break a promise (lifetimes {rows})", why=str(violation),
                         remedy="correct the offsets of these rows, or leave them free")  # fmt: skip

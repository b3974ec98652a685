"""Random tables of lifetimes, an oracle for small ones, and the files of the data folder."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.common.paths import DATA
from memfit.planning.packing import FREE, Lifetimes


def data_file(name: str) -> Lifetimes:
    """A file of the data folder; skips the test where there is none."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the data folder is absent: no {path.name}; set MEMFIT_DATA")
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2, 3), dtype=np.int64)
    return Lifetimes(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


@st.composite
def tables(draw: st.DrawFn, *, max_count: int = 25, period: int | None = None, fixed: bool = False) -> Lifetimes:
    """Random lifetimes; with `fixed`, some prescribed ones stacked above each other."""
    count = draw(st.integers(0, max_count))
    rows = []
    for _ in range(count):
        lower = draw(st.integers(0, 11 if period is None else period - 1))
        rows.append((lower, lower + draw(st.integers(1, 12)), draw(st.integers(0, 9))))
    lifetimes = Lifetimes.from_rows(rows)
    if fixed:
        top = 0
        for row in range(count):
            if draw(st.integers(0, 4)) == 0 and (period is None or rows[row][1] - rows[row][0] <= period):
                lifetimes.offset[row] = top = top + draw(st.integers(0, 4))
                top += rows[row][2]
    return lifetimes


def tiling(count: int, seed: int, *, ticks: int = 1000, height: int = 100_000) -> Lifetimes:
    """A rectangle cut into `count` pieces, so that a plan of exactly `height` bytes exists, and no room to spare."""
    random = np.random.default_rng(seed)
    pieces = [(0, ticks, height)]
    while len(pieces) < count:
        area = np.array([(upper - lower) * size for lower, upper, size in pieces], dtype=float)
        lower, upper, size = pieces.pop(int(random.choice(len(pieces), p=area / area.sum())))
        at, upright = random.uniform(0.2, 0.8), random.random() < 0.5
        if upright and upper - lower > 1:
            middle = lower + max(1, int(at * (upper - lower)))
            pieces += [(lower, middle, size), (middle, upper, size)]
        else:
            below = max(1, int(at * size))
            pieces += [(lower, upper, below), (lower, upper, size - below)]
    return Lifetimes.from_rows(pieces)


def brute_force(lifetimes: Lifetimes, period: int | None = None) -> int:
    """The smallest footprint: in some order, each slot lies at the lowest offset that those before leave it."""
    slots = []
    for lower, upper, size, offset in zip(
        lifetimes.lower.tolist(),
        lifetimes.upper.tolist(),
        lifetimes.size.tolist(),
        lifetimes.offset.tolist(),
        strict=True,
    ):
        if size:
            count = 1 if period is None else -(-(upper - lower) // period)
            times = range(lower, upper) if period is None else range(lower, min(upper, lower + period))
            slots += [(frozenset(t if period is None else t % period for t in times), size, offset)] * count
    fixed = tuple((times, offset, offset + size) for times, size, offset in slots if offset != FREE)
    free = [(times, size) for times, size, offset in slots if offset == FREE]

    def place(order: tuple[int, ...]) -> int:
        placed = list(fixed)
        for index in order:
            times, size = free[index]
            lo = 0
            for _, below, top in sorted((p for p in placed if p[0] & times), key=lambda p: p[1]):
                if below < lo + size:
                    lo = max(lo, top)
            placed.append((times, lo, lo + size))
        return max((top for _, _, top in placed), default=0)

    return min(map(cache(place), permutations(range(len(free)))))

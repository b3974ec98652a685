"""Memory over the ops by what it holds, who owns its peak, and the peak of another iteration or program beside it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from memfit.arrays import Int64Array
from memfit.events import NamedLifetimes
from memfit.ir import Category, Trace
from memfit.planning.lifetimes import gaps, live_after, live_bytes, peak_tick
from memfit.reporting.page import ChangeRow, Changes, OwnerRow

_POINTS = 400  # of a curve beside another


def live_by_category(trace: Trace) -> dict[str, Int64Array]:
    """Return, by category, the bytes alive in each op when most are, each storage rounded up to the alignment.

    Categories without storages are left out. The sum over the categories is `load_bytes` less the pinned bytes.
    """
    own = {category: tuple(s for s in trace.storages if s.category is category) for category in Category}
    after = {category: live_bytes(replace(trace, storages=own[category]), aligned=True) for category in Category}
    total = live_bytes(trace, aligned=True)
    begins = [op.first_tick for op in trace.ops] + [trace.ticks]
    fullest = [begin + int(total[begin : end + 1].argmax()) for begin, end in zip(begins, begins[1:], strict=False)]
    return {category.value: row[fullest] for category, row in after.items() if row[fullest].any()}


def owners(trace: Trace) -> list[OwnerRow]:
    """Return who owns the peak, by line and category, the largest first."""
    ends = np.concatenate([[0.0], np.cumsum([op.duration_us for op in trace.ops])])
    widest: dict[int, float] = defaultdict(float)
    for gap in gaps(trace):
        widest[gap.storage] = max(widest[gap.storage], gap.duration_us)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for storage in live_after(trace, peak_tick(trace)):
        groups[trace.storages[storage].source, trace.storages[storage].category.value].append(storage)
    rows = []
    for (source, category), group in groups.items():
        own = [trace.storages[storage] for storage in group]
        lifetime = float(np.mean([ends[each.free] - ends[each.alloc] for each in own]))
        unused = max((widest[storage] for storage in group), default=0.0)
        rows.append(OwnerRow(source, category, sum(each.size_bytes for each in own), len(own), lifetime, unused))
    return sorted(rows, key=lambda row: (-row.size_bytes, row.source))


def changes(name: str, before: NamedLifetimes, after: NamedLifetimes) -> Changes:
    """Return how the peak of `after` differs from that of `before`, which is called `name`, by line."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    lives, alike = [_live(each) for each in (before, after)], _named_alike(before.sources, after.sources)
    for which, (lifetimes, live) in enumerate(zip((before, after), lives, strict=True)):
        peak = int(live.argmax()) + int(lifetimes.lower.min(initial=0))
        there = np.flatnonzero((lifetimes.lower <= peak) & (peak < lifetimes.upper)).tolist()
        for row in there:
            source = alike[lifetimes.sources[row]] if lifetimes.sources else ""
            totals[source][which] += int(lifetimes.size[row])
    rows = [ChangeRow(source, *both) for source, both in totals.items() if both[0] != both[1]]
    rows.sort(key=lambda row: (-abs(row.after_bytes - row.before_bytes), row.source))
    peak_bytes, own_peak_bytes = (int(live.max()) for live in lives)
    return Changes(name, peak_bytes, own_peak_bytes, rows, *(_curve(live) for live in lives))


def _live(lifetimes: NamedLifetimes) -> Int64Array:
    """Return the bytes alive from the first time on."""
    first = int(lifetimes.lower.min(initial=0))
    change = np.zeros(int(lifetimes.upper.max(initial=first)) - first + 1, dtype=np.int64)
    np.add.at(change, lifetimes.lower - first, lifetimes.size)
    np.subtract.at(change, lifetimes.upper - first, lifetimes.size)
    return np.cumsum(change)


def _named_alike(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Return a name for each line, one for the same line of both: other tools name a file by its whole path."""
    both = sorted({(source, side) for side, sources in enumerate((before, after)) for source in sources}, key=_length)
    names: dict[str, str] = {}
    free: dict[str, list[tuple[str, int]]] = defaultdict(list)  # those that no line of the other side is yet
    for source, side in both:
        own = free[os.path.basename(source)]
        same = next((each for each in own if each[1] != side and f"/{source}".endswith(f"/{each[0]}")), None)
        names[source] = same[0] if same else names.get(source, source)
        own.remove(same) if same else own.append((source, side))
    return names


def _length(line: tuple[str, int]) -> tuple[int, str, int]:
    return len(line[0]), *line


def _curve(live: Int64Array) -> list[int]:
    """Return the most of each of a few equal parts of the time."""
    begins = np.linspace(0, len(live), min(_POINTS, len(live)), endpoint=False).astype(np.int64)
    most: list[int] = np.maximum.reduceat(live, begins).tolist()
    return most

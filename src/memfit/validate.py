"""Independent checker of placements: says which promise a plan breaks first, and where.

It shares no code with the packer, and looks at the plan alone: every instance of every lifetime is laid out in
time, and a tree over time finds what holds the same bytes. O(n log^2 n) time, O(n) memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from memfit.arrays import Int64Array
from memfit.errors import MemfitError


class Promise(StrEnum):
    """The promises of a placement."""

    SHAPE = "shape"
    RANGE = "range"
    ALIGNMENT = "alignment"
    CAPACITY = "capacity"
    FIXED = "fixed offset"
    PERIOD = "period"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        promise: The promise.
        message: One sentence with the figures.
        lifetimes: The rows it concerns.
        time: The tick, if there is one.
        bytes: The bytes [lo, hi), if there are any.
    """

    promise: Promise
    message: str
    lifetimes: tuple[int, ...] = ()
    time: int | None = None
    bytes: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.promise}: {self.message}"


class InvalidPlanError(MemfitError):
    """A plan breaks a promise; `violation` says which."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation), remedy="report this plan: it must not be used")
        self.violation = violation


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Bytes [lo, hi) held during [begin, end) by a lifetime, as columns sorted by begin."""

    lifetime: Int64Array
    begin: Int64Array
    end: Int64Array
    lo: Int64Array
    hi: Int64Array

    def __len__(self) -> int:
        return len(self.begin)


def check_placements(
    *,
    lower: Int64Array,
    upper: Int64Array,
    size_bytes: Int64Array,
    offset_bytes: Int64Array,
    slots: Int64Array | None = None,
    alignment: int = 1,
    capacity_bytes: int | None = None,
    period: int | None = None,
    fixed_bytes: Int64Array | None = None,
) -> Violation | None:
    """Check a placement of lifetimes.

    Arguments:
        lower: Ticks, int64 of shape (n,); the begin of each lifetime.
        upper: Ticks, int64 of shape (n,); the end of each lifetime.
        size_bytes: int64 of shape (n,). A lifetime holds its size rounded up to `alignment`.
        offset_bytes: int64, one entry for each slot, in the order of lifetimes.
        slots: int64 of shape (n,), the number of slots of each lifetime; None means one each.
        alignment: Bytes; every offset is a multiple of it.
        capacity_bytes: The most that the placement may take; None sets no limit.
        period: Ticks after which time repeats. A lifetime may run over the end into the next iteration; one longer
            than the period has as many slots as it spans periods, rounded up, and instances take turns.
        fixed_bytes: int64 of shape (n,), prescribed offsets, -1 where free.

    Returns:
        The first broken promise, or None if the placement keeps all.
    """
    counts = np.ones(len(lower), dtype=np.int64) if slots is None else slots
    columns = (lower, upper, size_bytes, counts) + (() if fixed_bytes is None else (fixed_bytes,))
    shape = _check_shape(columns, counts, offset_bytes)
    if shape:
        return shape
    owner = np.repeat(np.arange(len(lower)), counts)
    return (
        _check_range(lower, upper, size_bytes, offset_bytes, owner, period)
        or _check_alignment(offset_bytes, owner, alignment)
        or _check_slots(lower, upper, counts, period)
        or _check_fixed(offset_bytes, owner, fixed_bytes)
        or _check_capacity(size_bytes, offset_bytes, owner, alignment, capacity_bytes)
        or _check_overlap(_lay_out(lower, upper, size_bytes, offset_bytes, owner, alignment, period))
    )


def require_valid(violation: Violation | None) -> None:
    """Refuse a broken placement.

    Arguments:
        violation: The result of `check_placements`.

    Raises:
        InvalidPlanError: There is a violation.
    """
    if violation is not None:
        raise InvalidPlanError(violation)


def _check_shape(columns: Sequence[Int64Array], counts: Int64Array, offset_bytes: Int64Array) -> Violation | None:
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        return Violation(Promise.SHAPE, f"columns have {lengths[0]} and {lengths[-1]} rows")
    if len(counts) and int(counts.min()) < 1:
        row = int(np.argmax(counts < 1))
        return Violation(Promise.SHAPE, f"lifetime {row} has {int(counts[row])} slots", (row,))
    if int(counts.sum()) != len(offset_bytes):
        return Violation(Promise.SHAPE, f"{int(counts.sum())} slots, but {len(offset_bytes)} offsets")
    return None


def _check_range(
    lower: Int64Array,
    upper: Int64Array,
    size_bytes: Int64Array,
    offset_bytes: Int64Array,
    owner: Int64Array,
    period: int | None,
) -> Violation | None:
    checks = [
        (lower >= upper, "ends before it begins"),
        (size_bytes < 0, "has a negative size"),
    ]
    if period is not None:
        checks.append(((lower < 0) | (lower >= period), f"begins outside the period [0, {period})"))
    for bad, what in checks:
        if bad.any():
            row = int(np.argmax(bad))
            text = f"lifetime {row} [{int(lower[row])}, {int(upper[row])}) of {int(size_bytes[row])} bytes {what}"
            return Violation(Promise.RANGE, text, (row,), int(lower[row]))
    if (offset_bytes < 0).any():
        slot = int(np.argmax(offset_bytes < 0))
        row, offset = int(owner[slot]), int(offset_bytes[slot])
        return Violation(Promise.RANGE, f"lifetime {row} is at the negative offset {offset}", (row,))
    return None


def _check_alignment(offset_bytes: Int64Array, owner: Int64Array, alignment: int) -> Violation | None:
    bad = offset_bytes % alignment != 0
    if not bad.any():
        return None
    slot = int(np.argmax(bad))
    row, offset = int(owner[slot]), int(offset_bytes[slot])
    return Violation(
        Promise.ALIGNMENT, f"lifetime {row} is at {offset}, which is not a multiple of {alignment}", (row,)
    )


def _check_slots(lower: Int64Array, upper: Int64Array, counts: Int64Array, period: int | None) -> Violation | None:
    needed = np.ones_like(counts) if period is None else -(-(upper - lower) // period)
    bad = needed != counts
    if not bad.any():
        return None
    row = int(np.argmax(bad))
    text = f"lifetime {row} lasts {int(upper[row] - lower[row])} ticks and needs {int(needed[row])} slots in turn, "
    return Violation(Promise.PERIOD, f"{text}but has {int(counts[row])}", (row,), int(lower[row]))


def _check_fixed(offset_bytes: Int64Array, owner: Int64Array, fixed_bytes: Int64Array | None) -> Violation | None:
    if fixed_bytes is None:
        return None
    wanted = fixed_bytes[owner]
    bad = (wanted != -1) & (wanted != offset_bytes)
    if not bad.any():
        return None
    slot = int(np.argmax(bad))
    row = int(owner[slot])
    text = f"lifetime {row} is fixed at {int(wanted[slot])}, but lies at {int(offset_bytes[slot])}"
    return Violation(Promise.FIXED, text, (row,))


def _check_capacity(
    size_bytes: Int64Array,
    offset_bytes: Int64Array,
    owner: Int64Array,
    alignment: int,
    capacity_bytes: int | None,
) -> Violation | None:
    if capacity_bytes is None:
        return None
    ends = offset_bytes + -(-size_bytes[owner] // alignment) * alignment
    bad = (ends > capacity_bytes) & (ends > offset_bytes)  # no bytes take no room
    if not bad.any():
        return None
    slot = int(np.argmax(bad))
    row, end = int(owner[slot]), int(ends[slot])
    text = f"lifetime {row} ends at byte {end}, {end - capacity_bytes} over the capacity of {capacity_bytes}"
    return Violation(Promise.CAPACITY, text, (row,), bytes=(int(offset_bytes[slot]), end))


def _lay_out(
    lower: Int64Array,
    upper: Int64Array,
    size_bytes: Int64Array,
    offset_bytes: Int64Array,
    owner: Int64Array,
    alignment: int,
    period: int | None,
) -> _Held:
    held_bytes = (-(-size_bytes // alignment) * alignment)[owner]
    slots = np.flatnonzero(held_bytes)
    lifetime = owner[slots]
    begin, end = lower[lifetime], upper[lifetime]
    if period is not None:
        begin = np.where(end - begin >= period, 0, begin)
        end = np.where(upper[lifetime] - lower[lifetime] >= period, period, end)
        # A lifetime that runs over the end of the period also holds its bytes at its start.
        over = np.flatnonzero(end > period)
        begin, end = np.append(begin, np.zeros_like(over)), np.append(np.minimum(end, period), end[over] - period)
        slots, lifetime = np.append(slots, slots[over]), np.append(lifetime, lifetime[over])
    by_begin = np.argsort(begin, kind="stable")
    slots = slots[by_begin]
    lo = offset_bytes[slots]
    return _Held(lifetime[by_begin], begin[by_begin], end[by_begin], lo, lo + held_bytes[slots])


def _check_overlap(held: _Held) -> Violation | None:
    # Rows are sorted by begin: row i shares a time with the next meets[i] rows and with none after those.
    meets = np.searchsorted(held.begin, held.end) - np.arange(1, len(held) + 1)
    few = int(meets.sum()) <= _FEW
    pairs = [_pair_among_few(held, meets)] if few else map(_pair_on_level, _levels(held))
    pair = next(filter(None, pairs), None)
    return None if pair is None else _overlap(held, *pair)


_FEW = 80_000
"""Up to so many pairs that share a time, comparing one by one is faster than a tree."""

_Pair = tuple[int, int]


def _pair_among_few(held: _Held, meets: Int64Array) -> _Pair | None:
    first = np.repeat(np.arange(len(held)), meets)
    nth = np.arange(len(first)) - np.repeat(np.cumsum(meets) - meets, meets)
    second = first + 1 + nth
    clash = (held.lo[first] < held.hi[second]) & (held.lo[second] < held.hi[first])
    if not clash.any():
        return None
    which = int(clash.argmax())
    return int(first[which]), int(second[which])


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """One level of a tree over time.

    Every row is cut into few nodes that it `covers`. Two rows share a time iff one of them is alive somewhere in a
    node that the other covers, and of the nodes of a level a row is partly alive in no more than two: those of its
    first and its last moment.
    """

    held: _Held
    rank: Int64Array  # of each row by `lo`; all differ
    row: Int64Array  # those that cover a node on this level
    node: Int64Array  # which one
    first: Int64Array  # by row of `held`: the node of its first moment
    last: Int64Array


def _levels(held: _Held) -> Iterator[_Level]:
    rank = np.empty(len(held), dtype=np.int64)
    rank[np.argsort(held.lo, kind="stable")] = np.arange(len(held))
    # The moments that matter are begins: of two rows that share a time, one begins while the other is alive.
    first = np.cumsum(np.diff(held.begin, prepend=held.begin[:1]) != 0)
    last = np.append(first, first[-1:] + 1)[np.searchsorted(held.begin, held.end)] - 1
    rows, begin, end = np.arange(len(held)), first, last + 1  # those that no lower level covers
    while len(rows):
        odd, even = (begin & 1) == 1, (end & 1) == 1
        row = np.append(rows[odd], rows[even])
        if len(row):
            yield _Level(held, rank, row, np.append(begin[odd], end[even] - 1), first, last)
        begin, end = (begin + 1) >> 1, end >> 1
        left = begin < end
        rows, begin, end = rows[left], begin[left], end[left]
        first, last = first >> 1, last >> 1


def _pair_on_level(level: _Level) -> _Pair | None:
    """Look for two rows that cover one node, or one that covers it and one alive in it, and hold the same bytes."""
    held, count = level.held, len(level.held)
    key = level.node * count + level.rank[level.row]
    by_key = np.argsort(key)
    key, row, node = key[by_key], level.row[by_key], level.node[by_key]
    clash = (node[1:] == node[:-1]) & (held.lo[row[1:]] < held.hi[row[:-1]])
    if clash.any():
        which = int(clash.argmax())
        return int(row[which]), int(row[which + 1])
    is_covered = np.zeros(int(level.last.max()) + 1, dtype=bool)
    is_covered[node] = True
    # Bounds beyond all keys: then what is looked up always has a neighbour.
    lo, hi = np.append(held.lo[row], 0), np.append(held.hi[row], 0)
    node = np.append(node, -1)
    for alive_in in (level.first, level.last):
        asked = np.flatnonzero(is_covered[alive_in])
        at = np.searchsorted(key, alive_in[asked] * count + level.rank[asked])
        for near in (at - 1, at):
            clash = (node[near] == alive_in[asked]) & (lo[near] < held.hi[asked]) & (held.lo[asked] < hi[near])
            clash[clash] = row[near[clash]] != asked[clash]  # a row may cover the node it is alive in
            if clash.any():
                which = int(clash.argmax())
                return int(asked[which]), int(row[near[which]])
    return None


def _overlap(held: _Held, a: int, b: int) -> Violation:
    lo, hi = int(max(held.lo[a], held.lo[b])), int(min(held.hi[a], held.hi[b]))
    time = int(max(held.begin[a], held.begin[b]))
    first, second = sorted((int(held.lifetime[a]), int(held.lifetime[b])))
    text = f"lifetimes {first} and {second} both hold bytes [{lo}, {hi}) at time {time}"
    return Violation(Promise.OVERLAP, text, (first, second), time, (lo, hi))

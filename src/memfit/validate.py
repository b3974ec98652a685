"""Independent checker of placements: says which promise a plan breaks first, and where.

It shares no code with the packer, and looks at the plan alone: every instance of every lifetime is laid out in
time, and a sweep over births and deaths keeps what is alive sorted by offset. O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from memfit.errors import MemfitError

Int64Array = NDArray[np.int64]


class Promise(StrEnum):
    """What a plan promises."""

    SHAPE = "shape"
    RANGE = "range"
    ALIGNMENT = "alignment"
    CAPACITY = "capacity"
    FIXED = "fixed offset"
    PERIOD = "period"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the lifetimes (rows) it concerns, when (a tick) and which bytes [lo, hi)."""

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


@dataclass(frozen=True, slots=True)
class _Slot:
    """Bytes held by one slot of one lifetime, and the rounds [begin, end) of time it holds them."""

    lifetime: int
    lo: int
    hi: int
    spans: tuple[tuple[int, int], ...]


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
    """Return the first violation of a plan, or None if it keeps every promise.

    `offset_bytes` has one entry for each slot, in the order of lifetimes; lifetime i has `slots[i]` of them in a
    row (1 if not given). Under a `period` a lifetime may run over the end into the next iteration; one longer than
    the period has as many slots as it spans periods, rounded up, and instances take turns. `fixed_bytes` are
    prescribed offsets, -1 where free. A lifetime holds its size rounded up to `alignment`.
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
    """Raise InvalidPlanError if there is a violation."""
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
    return Violation(Promise.ALIGNMENT, f"lifetime {row} is at {offset}, no multiple of {alignment}", (row,))


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
) -> Iterator[_Slot]:
    for row, offset in zip(owner.tolist(), offset_bytes.tolist(), strict=True):
        held = -(-int(size_bytes[row]) // alignment) * alignment
        if held:
            yield _Slot(row, offset, offset + held, _spans(int(lower[row]), int(upper[row]), period))


def _spans(begin: int, end: int, period: int | None) -> tuple[tuple[int, int], ...]:
    if period is None:
        return ((begin, end),)
    if end - begin >= period:
        return ((0, period),)
    if end <= period:
        return ((begin, end),)
    return ((begin, period), (0, end - period))


_Entry = tuple[int, int, int]  # lo, hi, and who holds the bytes


class _Alive:
    """What is alive, sorted by offset, in blocks short enough that to insert is cheap."""

    _LONGEST = 1000

    def __init__(self) -> None:
        self._blocks: list[list[_Entry]] = [[]]
        self._firsts: list[_Entry] = [(-1, -1, -1)]  # no entry of a block is below its first

    def neighbours(self, entry: _Entry) -> Iterator[_Entry]:
        """Yield the entries right below and right above."""
        number = bisect_right(self._firsts, entry) - 1
        at = bisect_left(self._blocks[number], entry)
        yield from self._blocks[number][max(at - 1, 0) : at + 1]
        if at == 0 and number > 0:
            yield from next((block[-1:] for block in reversed(self._blocks[:number]) if block), [])
        if at == len(self._blocks[number]):
            yield from next((block[:1] for block in self._blocks[number + 1 :] if block), [])

    def add(self, entry: _Entry) -> None:
        number = bisect_right(self._firsts, entry) - 1
        block = self._blocks[number]
        insort(block, entry)
        if len(block) > self._LONGEST:
            middle = len(block) // 2
            self._blocks.insert(number + 1, block[middle:])
            self._firsts.insert(number + 1, block[middle])
            del block[middle:]

    def remove(self, entry: _Entry) -> None:
        number = bisect_right(self._firsts, entry) - 1
        block = self._blocks[number]
        del block[bisect_left(block, entry)]
        if not block and number > 0:
            del self._blocks[number], self._firsts[number]


def _check_overlap(slots: Iterator[_Slot]) -> Violation | None:
    """Sweep over time; what is alive never overlaps, so a newcomer has at most two neighbours to check."""
    events: list[tuple[int, int, int, int, int]] = []
    for number, slot in enumerate(slots):
        for begin, end in slot.spans:
            events.append((begin, 1, slot.lo, slot.hi, (number << 32) | slot.lifetime))
            events.append((end, 0, slot.lo, slot.hi, (number << 32) | slot.lifetime))
    events.sort()
    alive = _Alive()
    for time, is_birth, *rest in events:
        entry = (rest[0], rest[1], rest[2])
        if not is_birth:
            alive.remove(entry)
            continue
        for other in alive.neighbours(entry):
            if other[0] < entry[1] and entry[0] < other[1]:
                return _overlap(other, entry, time)
        alive.add(entry)
    return None


def _overlap(a: _Entry, b: _Entry, time: int) -> Violation:
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    first, second = sorted((a[2] & 0xFFFFFFFF, b[2] & 0xFFFFFFFF))
    text = f"lifetimes {first} and {second} both hold bytes [{lo}, {hi}) at time {time}"
    return Violation(Promise.OVERLAP, text, (first, second), time, (lo, hi))

"""The longest segment of a sequence that repeats itself at once, in O(n log n) memory and O(n log^2 n) time.

A segment of length p repeats at once from i if the sequence equals itself p later over a run of p entries. Every such
run holds a multiple of p, so it is enough to extend matches forth and back from the pairs (p k, p (k + 1)): n log n
pairs in all. How far a match extends is found with names for the stretches of length 2^k (Karp, Miller, Rosenberg).
"""

from __future__ import annotations

import numpy as np

from memfit.arrays import Int64Array


def longest_repeat(tokens: Int64Array) -> tuple[int, int] | None:
    """Return (start, length) of the longest segment that is followed by itself, the earliest of equals."""
    left, period = _pairs(len(tokens))
    forth = _common(_names(tokens), left, left + period)
    backward = _names(tokens[::-1])
    back = _common(backward, len(tokens) - left, len(tokens) - left - period)
    repeats = np.flatnonzero(back + forth >= period)
    if not len(repeats):
        return None
    longest = period[repeats].max()
    starts = (left - back)[repeats[period[repeats] == longest]]
    return int(starts.min()), int(longest)


def _pairs(count: int) -> tuple[Int64Array, Int64Array]:
    """Return the columns p k and p of every pair of positions (p k, p (k + 1)) in a sequence of `count`."""
    periods = np.arange(1, count // 2 + 1, dtype=np.int64)
    each = (count - 1) // periods
    period = np.repeat(periods, each)
    first_of_period = np.repeat(np.cumsum(each) - each, each)
    return period * (np.arange(len(period), dtype=np.int64) - first_of_period), period


def _names(tokens: Int64Array) -> list[Int64Array]:
    """Return, for each k, a number for each stretch of 2^k tokens: equal for equal stretches only."""
    levels = [np.unique(tokens, return_inverse=True)[1].astype(np.int64)]
    while 2 << (len(levels) - 1) <= len(tokens):
        half = 1 << (len(levels) - 1)
        names = levels[-1]
        both = names[:-half] * len(tokens) + names[half:]
        levels.append(np.unique(both, return_inverse=True)[1].astype(np.int64))
    return levels


def _common(levels: list[Int64Array], first: Int64Array, second: Int64Array) -> Int64Array:
    """Return, for each pair, the number of equal tokens from `first` and `second` on."""
    length = np.zeros_like(first)
    for k in reversed(range(len(levels))):
        names = levels[k]
        a, b = first + length, second + length
        inside = np.flatnonzero(np.maximum(a, b) < len(names))
        equal = inside[names[a[inside]] == names[b[inside]]]
        length[equal] += 1 << k
    return length

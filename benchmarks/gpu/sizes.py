"""Arithmetic of sizes: a batch that fills a range of memory, and the largest that fits."""

from __future__ import annotations

from collections.abc import Callable

GIB = 1 << 30
# The bytes that a plain run should take at its peak; and about how many where the batch is set anew.
LOW, HIGH, TARGET = 20 * GIB, 60 * GIB, 28 * GIB


def scaled_batch(batch: int, multiple: int, peak_bytes: int, fixed_bytes: int) -> int:
    """Return the batch with which the peak lies in the wanted range; `batch` itself if it does already.

    `fixed_bytes` is what does not grow with the batch: weights, gradients, the optimizer's state.
    """
    if LOW <= peak_bytes <= HIGH:
        return batch
    per_sample = max(peak_bytes - fixed_bytes, 1) / batch
    samples = max(TARGET - fixed_bytes, 0) / per_sample
    return max(int(samples) // multiple * multiple, multiple)


def largest(
    fits: Callable[[int], bool], first: int, most: int, enough: Callable[[], bool] = lambda: False, share: float = 0.06
) -> tuple[int, int | None]:
    """Return the largest size found to fit, from 0 to `most`, and the smallest found not to (None: none was).

    Doubles from `first` until one does not fit, then halves what lies between until it is less than `share` of the
    largest. `enough` ends the search early.
    """
    good, bad = 0, None
    size = max(first, 1)
    while bad is None and size <= most and not enough():
        if fits(size):
            good, size = size, (min(2 * size, most) if size < most else most + 1)
        else:
            bad = size
    while bad is not None and bad - good > max(share * good, 1) and not enough():
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good, bad


def gib(size_bytes: float | None) -> str:
    """Return a size for a table: GiB to two digits; MiB for what would have none."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / GIB:.2f}" if abs(size_bytes) >= GIB / 20 else f"{size_bytes / (1 << 20):.1f} MiB"

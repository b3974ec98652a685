"""Ways of timing that several benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Found = TypeVar("Found")


def timed(call: Callable[[], Found]) -> tuple[Found, float]:
    """Return what a call returns, and the seconds it took."""
    begin = time.perf_counter()
    return call(), time.perf_counter() - begin


def in_turn(ways: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return each way's figures; the ways take turns, so that what disturbs one disturbs all."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(way())
    return found


def ns_a_call(call: Callable[[], object], count: int, settled: Callable[[], object] = lambda: None) -> float:
    """Return the nanoseconds that a call takes on the host, warmed up; `settled` is awaited before they count."""
    for _ in range(count // 10):
        call()
    settled()
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count

"""What is compared: samples of torch's own operators and modules, and what is done to each.

A group makes its samples anew for every run, so that they are made under stress too. A sample has parts, each
of which is run and compared on its own; what a part raises is compared as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One set of inputs, and what is done to them, by name."""

    parts: dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Group:
    """An operator in one dtype and layout, or a module."""

    name: str
    make: Callable[[], Iterable[Sample]]

    def samples(self, most: int) -> Iterator[Sample]:
        """Yield at most `most` samples, the first ones."""
        for _, sample in zip(range(most), self.make(), strict=False):
            yield sample

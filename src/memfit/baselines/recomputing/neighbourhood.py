"""The cost of what is evicted around a storage, in sets that are only ever joined (Kirisame et al. 2021, appendix)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from memfit.baselines.recomputing.drops import Droppable


class Neighbourhoods:
    """Evicted values next to each other, one made from the other, are in one set; a set knows its microseconds."""

    def __init__(self, droppables: Iterable[Droppable]) -> None:
        self._next_to: dict[int, set[int]] = defaultdict(set)
        for each in droppables:
            for need in each.needs:
                self._next_to[need].add(each.value)
                self._next_to[each.value].add(need)
        self._set_of: dict[int, int] = {}
        self._joined: list[int] = []
        self._us: list[float] = []

    def us(self, value: int) -> float:
        """Return the microseconds of the sets next to `value`."""
        return sum(self._us[found] for found in set(self._around(value)))

    def evict(self, value: int, us: float) -> None:
        """Let `value` be evicted, and join the sets next to it."""
        own = len(self._us)
        self._us.append(us)
        self._joined.append(own)
        for found in set(self._around(value)):
            self._joined[found] = own
            self._us[own] += self._us[found]
        self._set_of[value] = own

    def bring_back(self, value: int, us: float) -> None:
        """Let `value` be there again; its set stays one, and loses its time."""
        self._us[self._root(self._set_of.pop(value))] -= us

    def _around(self, value: int) -> Iterator[int]:
        for other in self._next_to[value]:
            if other in self._set_of:
                yield self._root(self._set_of[other])

    def _root(self, found: int) -> int:
        while self._joined[found] != found:
            self._joined[found] = found = self._joined[self._joined[found]]
        return found

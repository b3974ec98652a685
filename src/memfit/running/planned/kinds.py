"""The kinds of iterations that a program has, in their order, and which one comes next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

_REMEMBERED = 256
_LONGEST = 48  # iterations that are compared; of epochs that are longer only the beginning is known
_LATELY = 32


@dataclass
class Kinds:
    """The last iterations, each by its signature, or by that of the plan that it followed."""

    history: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def note(self, kind: int) -> None:
        """Note that an iteration has ended."""
        self.history.append(kind)

    def expected(self) -> int:
        """Return what mostly came next when the iterations before were those before now, as many as ever; 0: nothing.

        After A A B A A B A A it is B, after A B A it is B, and after A A A B A it is A.
        """
        past = list(self.history)
        if len(set(past)) <= 1:
            return past[-1] if past else 0
        alike = [_alike(past, at) for at in range(len(past) - 1)]
        longest = max(alike)
        following = [past[at + 1] for at in range(len(past) - 2, -1, -1) if alike[at] == longest > 0]
        return max(following, key=following.count, default=0)  # of several the one that has come last

    def recurs(self, kind: int) -> bool:
        """Return whether it has come more than once lately."""
        return list(self.history)[-_LATELY:].count(kind) > 1

    def repeats(self, kind: int) -> bool:
        """Return whether it has lately come twice in a row."""
        return (kind, kind) in pairwise(list(self.history)[-_LATELY:])


def _alike(past: list[int], at: int) -> int:
    """Return how many iterations up to `at` are those up to the last one."""
    length = 0
    while length <= min(at, _LONGEST) and past[at - length] == past[-1 - length]:
        length += 1
    return length

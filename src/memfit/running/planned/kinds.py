"""The kinds of iterations that a program has, in their order, and which one comes next."""

from __future__ import annotations

from collections import Counter, deque
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

        After A A B A A B A A it is B, after A B A it is B, and after A A A B A it is A. After one that never came
        before it is what came most often.
        """
        past = list(self.history)
        letters: dict[int, str] = {}
        text = "".join(letters.setdefault(kind, chr(len(letters))) for kind in past)
        length = _longest_suffix(text)
        suffix, ends = text[len(text) - length :], range(len(past) - 1, length - 1, -1)
        following = [past[end] for end in ends if text.startswith(suffix, end - length)]
        mostly = Counter(following).most_common(1)  # of several the one that has come last
        return mostly[0][0] if mostly else 0

    def recurs(self, kind: int) -> bool:
        """Return whether it has come more than once lately."""
        return list(self.history)[-_LATELY:].count(kind) > 1

    def repeats(self, kind: int) -> bool:
        """Return whether it has lately come twice in a row."""
        return (kind, kind) in pairwise(list(self.history)[-_LATELY:])


def _longest_suffix(text: str) -> int:
    """Return the length of the longest end of the text that it has elsewhere, too."""
    length = 0
    while length < min(len(text) - 1, _LONGEST) and text[-length - 1 :] in text[:-1]:
        length += 1
    return length

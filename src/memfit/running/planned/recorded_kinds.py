"""Which of the recorded iterations a plan is made for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from memfit.running.planned.recorded import CompressedIterations
from memfit.tracing.build import RawRecording

_MOST = 8  # iterations


@dataclass
class RecordedKinds:
    """The iterations of a recording, in their order. It may begin in the midst of one, which does not count.

    Attributes:
        wanted: The signature of those for which it was begun; 0 while no kind of iterations has come again.
        repeats: Whether two of them in a row are to be expected.
        in_order: The signatures of all.
        op_marks: The numbers of ops at their ends, and one more for the beginning of the first.
        tick_marks: Likewise of allocations and frees.
        left: The iterations that may still be recorded.
    """

    wanted: int = 0
    repeats: bool = False
    in_order: Sequence[int] = ()
    op_marks: Sequence[int] = ()
    tick_marks: Sequence[int] = ()
    left: int = _MOST

    def note(self, signatures: Sequence[int], op_marks: Sequence[int], tick_marks: Sequence[int]) -> None:
        """Note that an iteration has ended; these are those of all so far."""
        self.left -= 1
        count = min(len(op_marks), len(tick_marks))
        self.op_marks, self.tick_marks = op_marks[-count:], tick_marks[-count:]
        self.in_order = signatures[len(signatures) - max(count - 1, 0) :]

    @property
    def is_enough(self) -> bool:
        """Whether there is what is wanted, or no more is to be recorded."""
        return self.left <= 0 or bool(self._twice(self.wanted) or (self._once(self.wanted) and not self.repeats))

    def found(self, known: Container[int]) -> int:
        """Return the kind to plan for: what is wanted, or otherwise one that is not known and came twice in a row.

        0: there is none.
        """
        if self._once(self.wanted):
            return self.wanted
        others = sorted(set(self.in_order) - {self.wanted}, key=self.in_order.count, reverse=True)
        return next((kind for kind in others if kind not in known and self._twice(kind)), 0)

    def iterations(self, kind: int, raw: RawRecording, alignment: int) -> CompressedIterations:
        """Return one of the kind, which was found, and the one after it, which is alike if any two were."""
        first = (self._twice(kind) or self._once(kind))[0]
        marks, tick_marks = (every[first : first + 3] for every in (self.op_marks, self.tick_marks))
        return CompressedIterations.of(raw, marks, tick_marks, f"{kind:016x}", alignment)

    def _once(self, kind: int) -> list[int]:
        return [at for at, each in enumerate(self.in_order[:-1]) if each == kind]

    def _twice(self, kind: int) -> list[int]:
        return [at for at in self._once(kind) if self.in_order[at + 1] == kind]

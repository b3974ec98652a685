"""Kinds of iterations that run without a plan for a while, and why. None is given up for good, and none in silence."""

from __future__ import annotations

from dataclasses import dataclass, field

from memfit.messages import say

_WAIT = 16  # iterations, the first time; each further time it is twice as long
_LONGEST = 1024


@dataclass
class _Pause:
    why: str
    times: int  # that there was one
    until: int  # the number of iterations that have ended then
    is_told: bool
    is_over: bool = False  # there is a plan, or no iteration that would need one


WITHOUT = "iterations run without a plan"


@dataclass
class Pauses:
    """The pauses, by the signature of the iterations."""

    _of: dict[int, _Pause] = field(default_factory=dict)

    def begin(
        self, signature: int, why: str, now: int, *, at_once: bool = False, is_felt: bool = True, what: str = WITHOUT
    ) -> None:
        """Look for no plan for a while, from the iteration `now` on. With `at_once` the first pause has no length.

        The first pause that has one is told, if it `is_felt`: if such iterations come and run without a plan, or
        `what` else that means for them.
        """
        before = self._of.get(signature)
        times = before.times + 1 if before else 0 if at_once else 1
        wait = min(_WAIT << (times - 1), _LONGEST) if times else 0
        was_told = before is not None and before.is_told
        is_told = was_told or (times > 0 and is_felt)
        self._of[signature] = _Pause(why, times, now + wait, is_told,
                                       is_over=not is_felt or what != WITHOUT)  # fmt: skip
        if is_told and not was_told:
            say(f"memfit: note: {what} ({why}); memfit tries again after {wait} more")

    def lasts(self, signature: int, now: int) -> bool:
        """Return whether it is not yet time to look for a plan again."""
        return signature in self._of and now < self._of[signature].until

    def end(self, signature: int) -> None:
        """Note that there is a plan in force."""
        if signature in self._of:
            self._of[signature].is_over = True

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the kinds of iterations that have no plan now have none."""
        return tuple(pause.why for pause in list(self._of.values()) if pause.times and not pause.is_over)

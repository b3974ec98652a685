"""Asks for plans: each with what is known by then of its kind of iterations, of the budget and of the link."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from memfit.ir import Plan
from memfit.machine import Machine
from memfit.planning.joint.program import Moves
from memfit.planning.paging.choice import Frames
from memfit.running.engine.module import EngineModule
from memfit.running.planned.around import Around
from memfit.running.planned.link import SessionLink
from memfit.running.planned.making import Making
from memfit.running.planned.plan_cache import PlanCache
from memfit.running.planned.states import Known
from memfit.running.planned.wanted import Wanted

_LATELY = 3  # iterations, whose copies tell how fast the link is now
_SPARED = 32  # the part of the budget that each attempt after the first does without


@dataclass
class Asking:
    """Asks for plans, for a session's budget and its link as they are then.

    Attributes:
        engine: The session's engine.
        link: Its link.
        given: The plan that was passed.
        moves: What plans may do with a storage that is not in use.
        cache: Plans of earlier runs.
        unfit: The keys of those that were wrong, or found no room.
    """

    engine: EngineModule
    link: SessionLink
    given: Plan | None = None
    moves: Moves = Moves.JOINT
    cache: PlanCache | None = None
    unfit: set[str] = field(default_factory=set)
    _ended: deque[Mapping[str, int]] = field(default_factory=lambda: deque(maxlen=_LATELY + 1))
    """The engine's stats when the last iterations ended, the latest last."""

    def note(self, stats: Mapping[str, int]) -> None:
        """Note that an iteration has ended, with the engine's stats."""
        self._ended.append(stats)
        self.link.note(stats, self._ended[0])

    def machine(self) -> Machine:
        """Return the speed of copies in this session, or the assumed one before the first copies."""
        return self.link.machine(self.engine.stats())

    def given_for(self, known: Known) -> Plan | None:
        """Return the plan that was passed, unless it does not do for this kind."""
        return None if known.refuses_given else self.given

    def make(self, known: Known, *, stage: str = "") -> Making:
        """Begin to make a plan, and to foresee the one there is by what is known now, to compare them.

        Every rank comes to the `stage`, and needs the plan then: one of them searches.
        """
        stats = self.engine.stats()
        whole = stats["budget_bytes"]
        whole -= whole % self.engine.page_bytes(whole)
        spare = known.attempts * (whole // _SPARED) + (stats["peak_beside_bytes"] if whole else 0)
        in_the_way = self.engine.immovable() if known.attempts else ()
        wanted = Wanted(
            known.iterations, known.times, whole, whole if in_the_way else whole - spare, self.machine(),
            self.engine.op_hash, self.moves, tuple(known.never), known.plan is None, known.plan,
            self.given_for(known), self.cache, frozenset(self.unfit), Around(in_the_way, spare) if in_the_way else None,
            self._frames(whole), stage,
        )  # fmt: skip
        return Making(wanted.make)

    def _frames(self, budget_bytes: int) -> Frames | None:
        mapping = self.engine.mapping(budget_bytes) if budget_bytes else "never"
        if mapping == "never":
            return None
        if mapping == "direct":
            return Frames.none()
        return Frames.within(budget_bytes, self.engine.page_bytes(budget_bytes))

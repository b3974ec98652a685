"""What a plan is asked for, and the ways to one: the plan that was passed, one of an earlier run, or a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memfit.files.kept_plan import KeptPlan
from memfit.ir import Plan
from memfit.machine import Machine
from memfit.planning.autoswap.search import least_held
from memfit.planning.joint.program import Moves
from memfit.planning.paging.choice import SHARE_FOR_HOLES, Frames, choose_maps
from memfit.running.engine import OpHash
from memfit.running.planned.around import Around
from memfit.running.planned.chosen import engine_plan_of_kept, foreseen_anew
from memfit.running.planned.engine_plan import CompressedPlan, EnginePlan, make_engine_plan, within
from memfit.running.planned.given import given_engine_plan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.op_times import OpTimes
from memfit.running.planned.plan_cache import PlanCache
from memfit.running.planned.recorded import CompressedIterations, Recorded


@dataclass(frozen=True)
class Wanted:
    """A plan that is wanted.

    Attributes:
        iterations: The recorded iterations that it is for.
        times: What their ops take under a plan, if that is known.
        whole_bytes: The session's budget.
        budget_bytes: What the plan may use of it.
        machine: The links.
        op_hash: The engine's number for an op's name.
        moves: What may happen to a storage that is not in use.
        never: The storages that cannot be made again.
        is_first: Whether training has no plan yet, and waits for one.
        in_force: The plan that it has, which is foreseen anew; None where it has none.
        given: The plan that was passed.
        cache: Plans of earlier runs.
        unfit: The keys of those that were wrong, or found no room.
        around: What plans have to lie around; None where nothing was in their way yet.
        frames: The page frames that ops need for what they map; None where nothing is mapped.
        stage: Of the way to a plan that every rank of a machine goes, so that one of them searches for all; "" for
            what this rank alone wants.
    """

    iterations: CompressedIterations
    times: OpTimes | None
    whole_bytes: int
    budget_bytes: int
    machine: Machine
    op_hash: OpHash
    moves: Moves
    never: tuple[int, ...]
    is_first: bool
    in_force: CompressedPlan | None
    given: Plan | None
    cache: PlanCache | None
    unfit: frozenset[str]
    around: Around | None = None
    frames: Frames | None = None
    stage: str = ""

    def make(self, making: Making) -> Made:
        """Return what is found before the `making` is stopped."""
        recorded = self.iterations.recorded()
        if recorded is None:
            return Made()
        recorded = replace(recorded, around=self.around)
        if self.times is not None:
            recorded = self.times.applied_to(recorded)
        if self.budget_bytes:
            recorded = self._fitting(recorded)
        if self.given is not None:
            return self._judged(recorded, self.given)
        key = self._key(recorded)
        made = (
            self._kept(recorded, key)
            or self._from_another_rank(recorded, key, making)
            or self._searched(recorded, key, making)
        )
        return replace(made, anew=self._anew(recorded))

    def _judged(self, recorded: Recorded, given: Plan) -> Made:
        """Return the plan that was passed, or why it is not used: that is known soon, as nothing is searched for."""
        found = given_engine_plan(recorded, given, self.budget_bytes, self.machine, self.op_hash)
        if isinstance(found, EnginePlan):
            return Made(CompressedPlan.of(found, self.iterations))
        return Made(refused=found)

    def _fitting(self, recorded: Recorded) -> Recorded:
        """Return the iterations with in-place reuse, and, if plans cannot meet the budget so, with maps."""
        plain = recorded.handed_over(self.budget_bytes, self.never)
        if self.frames is None or int(least_held(plain.trace).max()) <= within(self.budget_bytes):
            return plain
        room = self.budget_bytes - self.budget_bytes // SHARE_FOR_HOLES
        maps = choose_maps(recorded.trace, room, self.frames)
        return recorded.mapped(maps, self.machine).handed_over(self.budget_bytes, self.never) if maps else plain

    def _key(self, recorded: Recorded) -> str:
        """Return what a plan is kept by on disk, "" where it is not."""
        if self.cache is None or not self.whole_bytes:
            return ""
        return self.cache.key_of(recorded.trace, self.whole_bytes)

    def _kept(self, recorded: Recorded, key: str) -> Made | None:
        """Return the plan of an earlier run, if training has none yet and there is one that does."""
        if self.cache is None or not key or not self.is_first or key in self.unfit:
            return None
        return self._restored(recorded, self.cache.find(key), key)

    def _from_another_rank(self, recorded: Recorded, key: str, making: Making) -> Made | None:
        """Return the plan for which another rank of this machine searches, unless this one is to search."""
        if self.cache is None or not key or not self.stage:
            return None
        is_joint, is_another = not self.is_first, key in self.unfit
        kept = self.cache.from_another_rank(
            key, self._claim(key), making.stop, is_joint=is_joint, is_another=is_another
        )
        made = self._restored(recorded, kept, key)
        return None if made is None else replace(made, is_shared=True)

    def _claim(self, key: str) -> str:
        return f"{key}.{self.stage}" if key and self.stage else ""

    def _restored(self, recorded: Recorded, kept: KeptPlan | None, key: str) -> Made | None:
        """Return a kept plan with addresses for these iterations, if there is one and it does."""
        if kept is None:
            return None
        plan = engine_plan_of_kept(recorded, kept, self.budget_bytes, self.machine, self.op_hash)
        if plan is None:
            return None
        return Made(CompressedPlan.of(plan, self.iterations), key=key, is_kept=True, never=kept.never)

    def _searched(self, recorded: Recorded, key: str, making: Making) -> Made:
        plan = self._search(recorded, making)
        compressed = None if plan is None else CompressedPlan.of(plan, self.iterations)
        searched = plan is None or plan.plan is not None
        return Made(compressed, key=key, searched=searched, claim=self._claim(key))

    def _search(self, recorded: Recorded, making: Making) -> EnginePlan | None:
        """Return the plan that is found soon when training waits for one; if there is none, training goes on."""
        never = frozenset(self.never) | recorded.not_made_again
        none_soon = making.takes_longer if self.is_first else None
        return make_engine_plan(recorded, self.budget_bytes, self.machine, self.op_hash, making.stop.is_set,
                                self.moves, never, none_soon=none_soon)  # fmt: skip

    def _anew(self, recorded: Recorded) -> CompressedPlan | None:
        if self.in_force is None:
            return None
        anew = CompressedPlan.of(foreseen_anew(recorded, self.in_force.plan(), self.machine), self.iterations)
        return replace(anew, is_joint=self.in_force.is_joint)

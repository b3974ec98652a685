"""What iterations under a plan show, and the plans that are made anew for it.

Storages that cannot be made again are never dropped from then on; where the link has another speed than was assumed, or
ops take another time than was foreseen, a plan is made with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memfit.ir import Timeline, Trace
from memfit.planning.joint.program import Moves
from memfit.planning.lifetimes import births
from memfit.running.engine.module import EngineModule
from memfit.running.planned.asking import Asking
from memfit.running.planned.drift import alike, may_gain
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.op_times import Timing
from memfit.running.planned.states import End, InForce, Known
from memfit.running.planned.timeline import measured_timeline

JOINT = "joint"  # a stage to which every rank comes
_STAYS = "it did not give its place to an output"


@dataclass
class Revisions:
    """Watches what plans in force do, and has them made anew."""

    engine: EngineModule
    asking: Asking
    measures: bool  # note what iterations under a plan did
    not_made_again: list[str] = field(default_factory=list)
    """The storages that could not be, with the op that made each, its line, and the reason."""
    _is_noting: bool = False

    def begin(self, known: Known) -> None:
        """Have the iterations noted that run by a plan, which has come into force, if anybody wants to know."""
        if self._notes(known):
            self._note_next()

    def _notes(self, known: Known) -> bool:
        is_foreseen = known.plan is not None and known.plan.foreseen_us is not None
        return is_foreseen and (self.measures or known.timing is not None)

    def _note_next(self) -> None:
        self.engine.start_timeline()
        self._is_noting = True

    def end(self) -> None:
        """Have no iterations noted any longer: the plan is not in force."""
        if self._is_noting:
            self.engine.stop_timeline()
        self._is_noting = False

    def noted(self, known: Known) -> Timeline | None:
        """Return what the iteration did, if that was noted, and have it noted of the next one; None otherwise.

        It is noted while another plan is made, too: that may take until the run's end.
        """
        if not self._is_noting or known.plan is None:
            return None
        plan, raw = known.plan.plan(), self.engine.stop_timeline()
        self._note_next()
        if plan.predicted is None:
            return None
        noted = measured_timeline(len(plan.predicted.start_us), raw, plan.predicted.host_bytes)
        if self.measures and noted is not None:
            known.note(noted)
        return noted

    def hear_of_drops(self, known: Known) -> bool:
        """Make another plan if it is new that storages cannot be made again; return whether it is.

        While ops are timed for another plan anyway, that one will do without.
        """
        plan = known.plan
        if plan is None or not (plan.dropped or plan.givers):
            return False
        _, failed = self.engine.tried_drops()
        found = {plan.dropped[drop]: why for drop, why in failed}
        found |= {plan.givers[op]: _STAYS for op in self.engine.refused_handovers() if op in plan.givers}
        fresh = {storage: why for storage, why in found.items() if storage not in known.never}
        if not fresh:
            return False
        if (trace := plan.trace()) is not None:
            self.not_made_again += [f"{_name_of(trace, storage)}: {why}" for storage, why in fresh.items()]
        known.never |= fresh
        if known.timing is None:
            known.making = self.asking.make(known)
        return True

    def compare(self, state: InForce, known: Known, end: End, noted: Timeline | None) -> None:
        """Make another plan if waits, copies or ops took another time than the one in force foresees.

        While ops are timed nothing else matters: a plan is made with what these show.
        """
        plan = known.plan
        if plan is None:
            return
        if known.timing is not None:
            if known.timing.add(noted):
                self._plan_with(known, known.timing)
            return
        if end.grew("timed_iterations") and self._compare_waits(state, known, plan, end.grew("stall_ns")):
            return
        self._compare_times(state, known, plan, end)

    def improve(self, known: Known) -> None:
        """Have the plan in force improved on, which was made in a hurry: with the times that its ops show first."""
        if known.revisions:
            known.making = self.asking.make(known, stage=JOINT)
        else:
            self._begin_timing(known)

    def _compare_waits(self, state: InForce, known: Known, plan: CompressedPlan, stall_ns: int) -> bool:
        """Make another plan if ops wait longer than foreseen, or the link is faster; return whether there will be one.

        It is the link that is slower than the plan was made for, or ops that take less time: then these are timed.
        """
        drift, machine = state.drift, self.asking.machine
        waits = drift.note_stalls(plan, stall_ns, known.revisions)
        if waits and alike(machine(), plan.machine):
            if plan.is_given:
                return False
            self._begin_timing(known)
            return True
        if waits or (may_gain(plan) and drift.note_link(plan, machine(), known.revisions)):
            known.revisions += 1
            known.making = self.asking.make(known)
            return True
        return False

    def _compare_times(self, state: InForce, known: Known, plan: CompressedPlan, end: End) -> None:
        """Time the ops if iterations take another time than was foreseen."""
        if plan.foreseen_us is None or plan.is_given:
            return
        ended, took_ns = end.stats["measured_iterations"], end.stats["iterations_ns"]
        if state.pace.note(plan.foreseen_us, ended, took_ns, known.revisions, gains=may_gain(plan)):
            self._begin_timing(known)

    def _begin_timing(self, known: Known) -> None:
        known.timing = Timing()
        if known.timing.is_enough:
            self._plan_with(known, known.timing)
        else:
            self.begin(known)

    def _plan_with(self, known: Known, timing: Timing) -> None:
        """Make another plan, with the times that were taken of ops."""
        plan = known.plan
        if plan is None:
            return
        known.times = timing.result(plan.plan().remakes["repeats"]) or known.times
        known.timing = None
        known.revisions += 1
        if not self._notes(known):
            self.end()
        stage = JOINT if self.asking.moves is Moves.JOINT and plan.may_be_improved else ""
        known.making = self.asking.make(known, stage=stage)


def _name_of(trace: Trace, storage: int) -> str:
    op, source = births(trace).get(storage), trace.storages[storage].source
    made_by = "a storage" if op is None else trace.ops[op].name
    return f"{made_by} at {source}" if source else made_by

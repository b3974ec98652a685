"""What iterations under a plan show, and the plans that are made anew for it.

Storages that cannot be made again are never dropped from then on; where the link has another speed than was assumed, or
ops take another time than was foreseen, a plan is made with what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memfit.ir import Timeline, Trace
from memfit.planning.lifetimes import births
from memfit.running.engine.module import EngineModule
from memfit.running.planned.asking import Asking
from memfit.running.planned.drift import alike, gains_by_speed
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.op_times import Timing
from memfit.running.planned.states import End, InForce, Known
from memfit.running.planned.timeline import measured_timeline

_STAYS = "it did not give its place to an output"


@dataclass
class Revisions:
    """Watches what plans in force do, and has them made anew."""

    engine: EngineModule
    asking: Asking
    measures: bool  # note what iterations under a plan did
    not_made_again: list[str] = field(default_factory=list)
    """The storages that could not be, with the op that made each, its line, and the reason."""

    def begin(self, plan: CompressedPlan) -> None:
        """Have the iterations noted that run by a plan, which has come into force."""
        if self.measures and plan.foreseen_us is not None:
            self.engine.start_timeline()

    def noted(self, state: InForce, known: Known) -> Timeline | None:
        """Return what the iteration did, if that was noted, and have it noted of the next one; None otherwise.

        It is noted while another plan is made, too: that may take until the run's end.
        """
        if not (self.measures or state.timing) or known.plan is None or known.plan.foreseen_us is None:
            return None
        plan, raw = known.plan.plan(), self.engine.stop_timeline()
        self.engine.start_timeline()
        if plan.predicted is None:
            return None
        noted = measured_timeline(len(plan.predicted.start_us), raw, plan.predicted.host_bytes)
        if self.measures and noted is not None:
            known.note(noted)
        return noted

    def hear_of_drops(self, known: Known) -> bool:
        """Make another plan if it is new that storages cannot be made again; return whether it is."""
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
        known.making = self.asking.make(known)
        return True

    def compare(self, state: InForce, known: Known, end: End, noted: Timeline | None) -> None:
        """Make another plan if waits, copies or ops took another time than the one in force foresees."""
        plan = known.plan
        if plan is None:
            return
        if end.grew("timed_iterations"):
            self._compare_links(state, known, plan, end.grew("stall_ns"))
        if known.making is None:
            self._compare_times(state, known, plan, end, noted)

    def _compare_links(self, state: InForce, known: Known, plan: CompressedPlan, stall_ns: int) -> None:
        """Make another plan if the link is not, or no longer, the one that the plan in force was made for."""
        drift, machine = state.drift, self.asking.machine
        is_slower = drift.note_stalls(plan, stall_ns, known.corrections) and not alike(machine(), plan.machine)
        if is_slower or (gains_by_speed(plan) and drift.note_link(plan, machine(), known.corrections)):
            known.corrections += 1
            known.making = self.asking.make(known)

    def _compare_times(self, state: InForce, known: Known, plan: CompressedPlan, end: End,
                       noted: Timeline | None) -> None:  # fmt: skip
        """Time the ops, and make another plan, if iterations take another time than was foreseen."""
        if plan.foreseen_us is None or plan.is_given:
            return
        if state.timing is None:
            ended, took_ns = end.stats["measured_iterations"], end.stats["iterations_ns"]
            if state.pace.note(plan.foreseen_us, ended, took_ns, known.timings):
                state.timing = Timing()
                self.engine.start_timeline()
        elif noted is not None and state.timing.add(noted):
            known.times = state.timing.result(plan.plan().remakes["repeats"])
            self.end_timing(state)
            known.timings += 1
            known.making = self.asking.make(known)

    def end_timing(self, state: InForce) -> None:
        """Time the ops no longer."""
        if state.timing is not None and not self.measures:
            self.engine.stop_timeline()
        state.timing = None


def _name_of(trace: Trace, storage: int) -> str:
    op, source = births(trace).get(storage), trace.storages[storage].source
    made_by = "a storage" if op is None else trace.ops[op].name
    return f"{made_by} at {source}" if source else made_by

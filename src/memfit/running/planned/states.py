"""The states of planned mode, and what is known of a kind of iteration and of an iteration's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memfit.ir import Timeline
from memfit.running.planned.drift import Drift
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.op_times import OpTimes, Pace, Timing
from memfit.running.planned.recorded import CompressedIterations

_WRONG = 20  # of the ops of an iteration, that part may be missing, or allocate what is not planned


@dataclass
class Known:
    """The knowledge of one kind of iterations."""

    signature: int
    iterations: CompressedIterations
    plan: CompressedPlan | None = None
    measured: Timeline | None = None  # the last iteration under the plan that was noted
    measured_before: tuple[CompressedPlan, Timeline] | None = None  # the same of an earlier plan, until then
    making: Making | None = None
    timing: Timing | None = None  # while ops are timed
    revisions: int = 0  # of its plan, with another speed of the link or other times of ops
    times: OpTimes | None = None  # under a plan
    strikes: int = 0  # iterations in a row whose plan was wrong, or was given up
    refused: int = 0  # times that the engine had no room for the plan
    attempts: int = 0  # to plan it that came to nothing
    has_failed: bool = False  # the planner, to make another plan
    refuses_given: bool = False  # the plan that was passed does not do for it
    never: dict[int, str] = field(default_factory=dict)  # storages that cannot be made again, and why
    key: str = ""  # that its plan is kept by on disk
    claim: str = ""  # other ranks wait for its plan until this is settled
    is_kept: bool = False  # the plan was kept there by an earlier run, or by another rank

    @property
    def is_planned_for(self) -> bool:
        """Whether another plan is made, or ops are timed for one."""
        return self.making is not None or self.timing is not None

    def take(self, made: Made) -> None:
        """Take the plan that was made, if there is one."""
        self.claim = made.claim
        if made.plan is not None:
            if self.plan is not None and self.measured is not None:
                self.measured_before = self.plan, self.measured
            self.plan, self.key, self.is_kept, self.measured = made.plan, made.key, made.is_kept, None
            self.refused, self.timing = 0, None
            self.never |= made.never

    def note(self, measured: Timeline) -> None:
        """Note an iteration under the plan."""
        self.measured, self.measured_before = measured, None

    @property
    def ran(self) -> tuple[CompressedPlan | None, Timeline | None]:
        """The plan that the last iteration was noted of, and that; the plan alone if none was noted."""
        return (self.plan, self.measured) if self.measured_before is None else self.measured_before

    @property
    def record_bytes(self) -> int:
        """The size of the record."""
        plans = (self.plan, self.measured_before and self.measured_before[0])
        plan_bytes = sum(plan.compressed.size_bytes for plan in plans if plan)
        times_bytes = self.times.size_bytes if self.times else 0
        return self.iterations.compressed.size_bytes + plan_bytes + times_bytes


@dataclass(frozen=True)
class Watching:
    """No plan is in force."""


@dataclass
class InForce:
    """The plan of iterations of a signature is in force."""

    signature: int
    drift: Drift = field(default_factory=Drift)
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Closed:
    """The session is over."""


@dataclass(frozen=True)
class End:
    """An iteration's end."""

    signatures: Sequence[int]
    stats: dict[str, int]
    before: dict[str, int]  # the stats at the end of the iteration before
    at_boundary: bool  # nothing has been allocated since

    @property
    def is_wrong(self) -> bool:
        """Whether much of it was not as planned. Ops that the plan does not have do it no harm."""
        return _WRONG * (self.grew("plan_mismatches") + self.grew("missing_ops")) > self.grew("ops")

    def grew(self, name: str) -> int:
        """Return by how much a figure grew in the iteration."""
        return self.stats[name] - self.before[name]

"""A plan, carried out on its trace, checked and timed: whatever it does, swaps or recomputes or both."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.ir import Plan, Timeline, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.as_plan import carried_out, swaps_alone
from memfit.planning.paging.mapped import with_maps
from memfit.simulate import require_same_trace, simulate
from memfit.validate_joint import require_valid_joint
from memfit.validate_maps import require_valid_maps
from memfit.validate_plan import require_valid_plan


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan that keeps its promises.

    Attributes:
        plan: The plan.
        made: The trace in which its recomputes are carried out.
        swaps: The swaps, as a plan for that trace.
        timeline: The effect of these.
        again_us: Microseconds of the ops that run again.
        mapped_us: Microseconds that ops take longer for what they map.
    """

    plan: Plan
    made: Transformed
    swaps: Plan
    timeline: Timeline
    again_us: float
    mapped_us: float = 0.0

    @property
    def compute_us(self) -> float:
        """The microseconds of the original trace's ops, each once."""
        return self.timeline.compute_us - self.again_us - self.mapped_us

    @property
    def added_us(self) -> float:
        """The microseconds that the plan adds: ops that run again, what ops map, and waits for copies."""
        return self.timeline.iteration_us - self.compute_us

    @property
    def overhead(self) -> float:
        """The added time as a part of the computation: 0.1 is 10 %."""
        return self.added_us / self.compute_us if self.compute_us else 0.0


def judged(trace: Trace, machine: Machine, plan: Plan) -> Judged:
    """Carry out a plan, check it, and time it.

    Arguments:
        trace: The recorded iteration.
        machine: The links of the tier.
        plan: The plan.

    Returns:
        The plan with the trace that it makes, and its effect.

    Raises:
        InvalidMapsError: What is mapped is not what an op uses, or not mapped where it has to be.
        InvalidSwapsError: The swaps break a promise, or the bytes exceed the plan's budget.
        InvalidRemakingsError: What is made again is not what it was, or not there when it is used.
        InputError: The plan has recomputes, and is for another trace.
    """
    mapped_us = 0.0
    if plan.maps:
        require_same_trace(trace, plan)
        require_valid_maps(trace, plan)
        recorded_us, trace = _compute_us(trace), with_maps(trace, plan.maps, machine)
        mapped_us = _compute_us(trace) - recorded_us
    if not plan.recomputes:  # first, so that a plan for another trace is refused as one
        require_valid_plan(trace, plan)
    made = carried_out(trace, plan)
    swaps = swaps_alone(made, plan)
    if plan.recomputes:
        require_valid_joint(corrected(trace), made)
        require_valid_plan(made.trace, swaps)
    again_us = sum((op.duration_us for op, again in zip(made.trace.ops, made.runs_again, strict=True) if again), 0.0)
    return Judged(plan, made, swaps, simulate(made.trace, machine, swaps), again_us, mapped_us)


def _compute_us(trace: Trace) -> float:
    return sum(op.duration_us for op in trace.ops)

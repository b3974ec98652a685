"""A plan that was in force, as reports show it: the iteration that it is for, what was foreseen, and what was measured.

All of it is made anew from what the session keeps, when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from memfit.ir import Plan, Timeline, Trace, Transformed
from memfit.machine import Machine
from memfit.planning.handing_over import with_handovers
from memfit.running.planned.chosen import made_by
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.recorded import Recorded
from memfit.tracing.build import Roles
from memfit.tracing.categories import categorise


@dataclass(frozen=True, slots=True)
class Ran:
    """A plan that moves storages, and its effect.

    Attributes:
        trace: The iteration that it is for. Its ops take what the plan foresees.
        plan: The plan; its swaps are of `made`.
        made: The iteration with its remakings.
        machine: The links that it is for.
        predicted: What it foresees.
        measured: Its last whole iteration; None if none was noted.
    """

    trace: Trace
    plan: Plan
    made: Transformed
    machine: Machine
    predicted: Timeline
    measured: Timeline | None


def what_ran(planned: CompressedPlan, measured: Timeline | None, roles: Roles, script: str) -> Ran | None:
    """Return the plan with its effect; None if no storage leaves by it.

    Arguments:
        planned: The plan.
        measured: The last iteration under it.
        roles: What the optimizers named.
        script: The script, as the command line named it.
    """
    found, recorded = planned.plan(), planned.iterations.recorded()
    if found.plan is None or found.predicted is None or found.machine is None or recorded is None:
        return None
    own = [each for each in recorded.trace.handovers if found.givers.get(each.op) == each.giver]
    trace = with_handovers(_named(recorded, roles), own)
    made = made_by(replace(recorded, trace=trace), found.plan)
    trace = replace(_as_foreseen(trace, made, found.predicted), script=script, torch_version=torch.__version__)
    return Ran(trace, found.plan, made, found.machine, found.predicted, measured)


def _named(recorded: Recorded, roles: Roles) -> Trace:
    """Return the trace with the categories that the optimizers and the ops tell."""
    trace = recorded.trace
    categories = categorise(
        trace.ops, recorded.blocks, [storage.alloc for storage in trace.storages],
        [storage.born_before for storage in trace.storages], roles,
    )  # fmt: skip
    named = zip(trace.storages, categories, strict=True)
    return replace(trace, storages=tuple(replace(storage, category=category) for storage, category in named))


def _as_foreseen(trace: Trace, made: Transformed, predicted: Timeline) -> Trace:
    """Return `trace` with the durations of its ops in the timeline."""
    ops = list(trace.ops)
    for op, (index, again) in enumerate(zip(made.op_of, made.runs_again, strict=True)):
        if not again:
            ops[index] = replace(ops[index], duration_us=predicted.end_us[op] - predicted.start_us[op])
    return replace(trace, ops=tuple(ops))

"""Joint plans as ordinary plans, which files hold, and the way back: from a trace and a plan to the trace it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memfit.ir import Plan, Recompute, Trace, Transformed
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import JointPlan
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.simulate import require_same_trace
from memfit.validate_joint import InvalidRemakingsError, JointPromise, JointViolation, require_known_recomputes


def as_plan(trace: Trace, found: JointPlan) -> Plan:
    """Return `found`, a joint plan for `trace`, as a plan."""
    return joined(trace, found.recomputes, found.transformed, found.swaps.plan)


def joined(trace: Trace, recomputes: Sequence[Recompute], made: Transformed, swaps: Plan) -> Plan:
    """Return the plan for `trace` of `recomputes` and of `swaps`, which are of the trace `made` of these.

    Without recomputes the swaps are those of `trace` itself, whose storages have other numbers than the ones `made`.
    """
    own = swaps.swaps
    if not recomputes:
        own = tuple(replace(swap, storage=made.storage_of[swap.storage]) for swap in own)
    return replace(swaps, signature=trace.signature, op_count=len(trace.ops), swaps=own, recomputes=tuple(recomputes))


def swaps_alone(made: Transformed, plan: Plan) -> Plan:
    """Return the swaps of `plan` as a plan for the trace `made`, in which its recomputes are carried out."""
    return replace(plan, signature=made.trace.signature, op_count=len(made.trace.ops), recomputes=())


def carried_out(trace: Trace, plan: Plan) -> Transformed:
    """Carry out the recomputes of a plan.

    Arguments:
        trace: The recorded iteration.
        plan: A plan for it.

    Returns:
        The trace in which storages are dropped and made again. Without recomputes it is `trace` itself. Whether every
        op reads what it read before is a question for `memfit.validate_joint`.

    Raises:
        InputError: The plan is for another trace.
        InvalidRemakingsError: It names what the trace does not have, or leaves an op without a storage.
    """
    require_same_trace(trace, plan)
    if not plan.recomputes:
        return Transformed.unchanged(trace)
    require_known_recomputes(trace, plan.recomputes)
    try:
        return with_recomputes(Values.of(corrected(trace)), plan.recomputes)
    except KeyError as error:  # storages are looked up by their numbers, and this one was dropped, or not made again
        text = f"storage {error.args[0]} is not there when an op uses it or when it is freed"
        raise InvalidRemakingsError(JointViolation(JointPromise.LIFETIME, text)) from error

"""Iterations of one script with other arguments, or several traces, under one budget: peak, floor and added time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from memfit.errors import BudgetError, UsageError
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap import smallest_budget
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import time_bound
from memfit.planning.paging import Frames, choose_maps
from memfit.reporting.whatif import IN_PARTS, Case
from memfit.simulate import load_bytes
from memfit.units import Budget

Values = dict[str, str]


def parse_varied(texts: Sequence[str]) -> list[Values]:
    """Return every combination of what "batch=8,16" and others mean, the last name varying fastest.

    Raises UsageError for one that is malformed, or for a name that comes twice.
    """
    varied: dict[str, list[str]] = {}
    for text in texts:
        name, _, words = text.partition("=")
        values = [word.strip() for word in words.split(",") if word.strip()]
        if not name.isidentifier() or not values or name in varied:
            why = "the name comes twice" if name in varied else "it is a name, '=' and values with commas between them"
            raise UsageError(f"--vary {text!r} cannot be read", why=why, remedy="--vary batch=8,16,32")
        varied[name] = list(dict.fromkeys(values))
    return [dict(zip(varied, combination, strict=True)) for combination in product(*varied.values())]


def filled(arguments: Sequence[str], values: Values) -> tuple[list[str], Values]:
    """Return `arguments` with each "{name}" replaced by its value, and the values that none of them names."""
    unused = {name: value for name, value in values.items() if not any(f"{{{name}}}" in word for word in arguments)}
    return [_filled(word, values) for word in arguments], unused


def _filled(word: str, values: Values) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def case_of(trace: Trace, values: Values, machine: Machine, budget: Budget | None, *, effort: float = 0.5) -> Case:
    """Return the figures of one trace; a budget that is a share is one of its own peak.

    Arguments:
        trace: The recorded iteration.
        values: What was varied.
        machine: The links of the tier.
        budget: The budget; None for none.
        effort: The seconds of each search for swaps.

    Returns:
        The figures.
    """
    peak = int(load_bytes(trace).max())
    floor = smallest_budget(trace)[0]
    budget_bytes = None if budget is None else budget.resolve(peak)
    fits, added, bound = "", None, None
    if budget_bytes is not None:
        fits, added, bound = _planned(trace, machine, budget_bytes, peak, effort)
    compute_us = sum(op.duration_us for op in trace.ops)
    return Case(values, trace.device, len(trace.ops), compute_us, peak, floor, budget_bytes, fits, added, bound)


def _planned(
    trace: Trace, machine: Machine, budget_bytes: int, peak_bytes: int, effort: float
) -> tuple[str, float | None, float | None]:
    if peak_bytes <= budget_bytes:
        return "as it is", 0.0, 0.0
    try:
        plan = plan_jointly(trace, machine, budget_bytes, effort=effort)
    except BudgetError:
        bound = time_bound(trace, machine, budget_bytes)
        return _below(trace, budget_bytes), None, bound.overhead if bound.is_feasible else None
    return "with a plan", plan.overhead, plan.bound.overhead


def _below(trace: Trace, budget_bytes: int) -> str:
    """Return whether ops that need more than a budget at once can use storages where they wait, or run in slices."""
    frames = (Frames.within(budget_bytes, trace.alignment), Frames.none())  # of a tier on a disk, and in memory
    return IN_PARTS if any(choose_maps(trace, budget_bytes, each) for each in frames) else "no"

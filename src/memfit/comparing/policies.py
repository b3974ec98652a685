"""Each policy on one trace, at each of several budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from memfit.baselines.policies import Policy
from memfit.comparing.planners import find_planner
from memfit.errors import BudgetError
from memfit.ir import Direction, Trace
from memfit.machine import Machine
from memfit.planning.joint.judged import judged
from memfit.reporting.policies import PolicyCell, PolicyComparison
from memfit.simulate import load_bytes
from memfit.units import parse_budget


def parse_budgets(text: str, peak_bytes: int) -> tuple[int, ...]:
    """Return the bytes that "80,60,40%" or "8GiB,60%" means: one "%" at the end counts for all without a unit.

    Raises InputError for one that is not a budget.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    percent = bool(words) and words[-1].endswith("%")
    full = [f"{word}%" if percent and word.replace(".", "", 1).isdigit() else word for word in words]
    return tuple(parse_budget(word).resolve(peak_bytes) for word in full)


def compare_policies(
    file: str,
    trace: Trace,
    machine: Machine,
    budgets: Sequence[int],
    policies: Sequence[str],
    find: Callable[[str], Policy] = find_planner,
) -> PolicyComparison:
    """Return the figures of each of `policies` at each of `budgets` (bytes); every plan is validated.

    `find` gives the policy of a name.
    """
    cells = [_cell(trace, machine, budget, name, find(name)) for budget in budgets for name in policies]
    peak = int(load_bytes(trace).max())
    return PolicyComparison(file, machine.name, peak, tuple(budgets), tuple(policies), tuple(cells))


def _cell(trace: Trace, machine: Machine, budget_bytes: int, name: str, policy: Policy) -> PolicyCell:
    begin = perf_counter()
    try:
        plan = policy(trace, machine, budget_bytes)
    except BudgetError as error:
        return PolicyCell(name, budget_bytes, None, 0, 0, error.required_bytes, perf_counter() - begin)
    seconds = perf_counter() - begin
    found = judged(trace, machine, plan)
    copied = sum(found.timeline.copied_bytes(direction) for direction in Direction)
    return PolicyCell(name, budget_bytes, found.overhead, found.timeline.peak_bytes, copied, None, seconds)

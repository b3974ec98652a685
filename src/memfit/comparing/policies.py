"""Each swap policy on one trace, at each of several budgets."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from memfit.baselines.policies import OPTIONAL, POLICIES, find_policy
from memfit.comparing.choice import choose
from memfit.errors import BudgetError
from memfit.ir import Direction, Trace
from memfit.machine import Machine
from memfit.reporting.policies import PolicyCell, PolicyComparison
from memfit.simulate import load_bytes, simulate
from memfit.units import parse_budget
from memfit.validate_plan import require_valid_plan


def choose_policies(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for an unknown one."""
    return choose(text, "policy", all_=tuple(POLICIES), more=tuple(OPTIONAL))


def parse_budgets(text: str, peak_bytes: int) -> tuple[int, ...]:
    """Return the bytes that "80,60,40%" or "8GiB,60%" means: one "%" at the end counts for all without a unit.

    Raises InputError for one that is not a budget.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    percent = bool(words) and words[-1].endswith("%")
    full = [f"{word}%" if percent and word.replace(".", "", 1).isdigit() else word for word in words]
    return tuple(parse_budget(word).resolve(peak_bytes) for word in full)


def compare_policies(
    file: str, trace: Trace, machine: Machine, budgets: Sequence[int], policies: Sequence[str]
) -> PolicyComparison:
    """Return the figures of each of `policies` at each of `budgets` (bytes); every plan is validated."""
    cells = [_cell(trace, machine, budget, name) for budget in budgets for name in policies]
    peak = int(load_bytes(trace).max())
    return PolicyComparison(file, machine.name, peak, tuple(budgets), tuple(policies), tuple(cells))


def _cell(trace: Trace, machine: Machine, budget_bytes: int, name: str) -> PolicyCell:
    begin = perf_counter()
    try:
        plan = find_policy(name)(trace, machine, budget_bytes)
    except BudgetError as error:
        return PolicyCell(name, budget_bytes, None, 0, 0, error.required_bytes, perf_counter() - begin)
    seconds = perf_counter() - begin
    require_valid_plan(trace, plan)
    timeline = simulate(trace, machine, plan)
    copied = sum(timeline.copied_bytes(direction) for direction in Direction)
    return PolicyCell(name, budget_bytes, timeline.overhead, timeline.peak_bytes, copied, None, seconds)

"""Each policy on one trace, at each of several budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from memfit.baselines.paging import PAGING, PagedRun
from memfit.baselines.policies import Policy
from memfit.comparing.choice import choose
from memfit.comparing.planners import NAMED, OTHERS, OURS, find_planner
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


def choose_policies(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for an unknown one.

    Besides the planners there are those that page: they plan nothing.
    """
    return choose(text, "policy", all_=(*OTHERS, *PAGING, *OURS), more=tuple(NAMED))


def compare_policies(
    file: str,
    trace: Trace,
    machine: Machine,
    budgets: Sequence[int],
    policies: Sequence[str],
    find: Callable[[str], Policy] = find_planner,
) -> PolicyComparison:
    """Return the figures of each of `policies` at each of `budgets` (bytes); every plan is validated.

    `find` gives the policy of a name, if it plans.
    """
    cells = [_cell(trace, machine, budget, name, find) for budget in budgets for name in policies]
    peak = int(load_bytes(trace).max())
    return PolicyComparison(file, machine.name, peak, tuple(budgets), tuple(policies), tuple(cells))


def _cell(trace: Trace, machine: Machine, budget_bytes: int, name: str, find: Callable[[str], Policy]) -> PolicyCell:
    begin = perf_counter()
    try:
        if name in PAGING:
            return _paged(PAGING[name](trace, machine, budget_bytes), perf_counter() - begin)
        plan = find(name)(trace, machine, budget_bytes)
    except BudgetError as error:
        return PolicyCell(name, budget_bytes, None, 0, 0, error.required_bytes, perf_counter() - begin)
    seconds = perf_counter() - begin
    found = judged(trace, machine, plan)
    copied = sum(found.timeline.copied_bytes(direction) for direction in Direction)
    return PolicyCell(name, budget_bytes, found.overhead, found.timeline.peak_bytes, copied, None, seconds)


def _paged(run: PagedRun, seconds: float) -> PolicyCell:
    copied_bytes = run.bytes_in + run.bytes_out
    return PolicyCell(run.policy, run.budget_bytes, run.overhead, run.peak_bytes, copied_bytes, None, seconds)

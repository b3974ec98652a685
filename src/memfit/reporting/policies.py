"""The report of `memfit compare --budgets`: each swap policy at each budget, as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from memfit.baselines.policies import OPTIONAL, POLICIES, find_policy
from memfit.errors import BudgetError, UsageError
from memfit.ir import Direction, Trace
from memfit.machine import Machine
from memfit.simulate import load_bytes, simulate
from memfit.units import parse_budget
from memfit.validate_plan import require_valid_plan


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one budget. Without a plan `overhead` is None and `required_bytes` the memory it would need."""

    policy: str
    budget_bytes: int
    overhead: float | None
    peak_bytes: int
    copied_bytes: int
    required_bytes: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """The cells of one trace, by budget and then by policy."""

    file: str
    machine: str
    unswapped_bytes: int
    budgets_bytes: tuple[int, ...]
    policies: tuple[str, ...]
    cells: tuple[Cell, ...]


def chosen_policies(text: str) -> tuple[str, ...]:
    """Return the names that "all" or "a,b,c" means; raises UsageError for one that is not known."""
    if text.strip() == "all":
        return tuple(POLICIES)
    wanted = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = {*POLICIES, *OPTIONAL}
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"there is no policy {unknown[0]!r}" if unknown else "--policies names no policy"
        raise UsageError(what, why=f"there are {', '.join((*POLICIES, *OPTIONAL))}", remedy="--policies all")
    return wanted


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
    """Return what each of `policies` does at each of `budgets` (bytes); every plan is validated."""
    cells = [_cell(trace, machine, budget, name) for budget in budgets for name in policies]
    peak = int(load_bytes(trace).max())
    return PolicyComparison(file, machine.name, peak, tuple(budgets), tuple(policies), tuple(cells))


def to_json(comparison: PolicyComparison) -> str:
    """Return `comparison` as a JSON object, with the names of the dataclasses' fields."""
    return json.dumps(asdict(comparison), indent=2)


def _cell(trace: Trace, machine: Machine, budget_bytes: int, name: str) -> Cell:
    begin = perf_counter()
    try:
        plan = find_policy(name)(trace, machine, budget_bytes)
    except BudgetError as error:
        return Cell(name, budget_bytes, None, 0, 0, error.required_bytes, perf_counter() - begin)
    seconds = perf_counter() - begin
    require_valid_plan(trace, plan)
    timeline = simulate(trace, machine, plan)
    copied = sum(timeline.copied_bytes(direction) for direction in Direction)
    return Cell(name, budget_bytes, timeline.overhead, timeline.peak_bytes, copied, None, seconds)

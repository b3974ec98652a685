"""AutoSwap as published (arXiv 1903.06631): candidates at the one peak, four scores, their best, their combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from memfit.baselines.policies.bayes import best_weights
from memfit.baselines.policies.policy import plan_of_swaps, too_large
from memfit.errors import BudgetError
from memfit.ir import Plan, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.by_score import SCORES, ByScore
from memfit.simulate import Simulator


def autoswap(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the fastest of the plans by each score; raises BudgetError if none fits."""
    problem = ByScore.of(trace, machine, budget_bytes)
    return _fastest("autoswap", problem, [problem.scores(name) for name in SCORES])


def autoswap_score(score: str, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan by one of `SCORES`; raises BudgetError if it does not fit."""
    problem = ByScore.of(trace, machine, budget_bytes)
    return _fastest(f"autoswap-{score}", problem, [problem.scores(score)])


def autoswap_bayes(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the plan by the best weighted sum of the scores; raises UsageError without bayesian-optimization."""
    problem = ByScore.of(trace, machine, budget_bytes)
    rows = [_normal(problem.scores(name)) for name in SCORES]
    weights = best_weights(lambda w: problem.static_stall_us(_mixed(w, rows)), len(rows))
    return _fastest("autoswap-bayes", problem, [_mixed(weights, rows)])


BY_SCORE: dict[str, Callable[[Trace, Machine, int], Plan]] = {
    f"autoswap-{score}": partial(autoswap_score, score) for score in SCORES
}
"""One policy for each score, by its name."""


def _fastest(name: str, problem: ByScore, rows: Sequence[Sequence[float]]) -> Plan:
    """Return the fastest plan by any of these scores; raises a BudgetError with the least they reach if none fits."""
    simulator, best, least = Simulator(problem.trace, problem.machine), None, None
    for scores in rows:
        try:
            plan = plan_of_swaps(name, problem.trace, problem.machine, problem.budget_bytes, problem.swaps(scores))
        except BudgetError as error:
            least = min(least or error.required_bytes or 0, error.required_bytes or 0)
            continue
        took_us = simulator.timeline(plan.swaps).iteration_us
        if best is None or took_us < best[0]:
            best = (took_us, plan)
    if best is None:
        raise too_large(name, problem.budget_bytes, least or 0)
    return best[1]


def _normal(scores: Sequence[float]) -> list[float]:
    largest = max((abs(score) for score in scores), default=0.0)
    return [score / largest if largest else 0.0 for score in scores]


def _mixed(weights: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(w * score for w, score in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]

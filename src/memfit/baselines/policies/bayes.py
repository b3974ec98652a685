"""Weights by Bayesian optimisation, with the published settings; needs the package bayesian-optimization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memfit.errors import UsageError

KAPPA = 5.0
ITERATIONS = 20


def best_weights(cost: Callable[[Sequence[float]], float], count: int) -> list[float]:
    """Return the `count` weights in [-1, 1] of the least `cost` found: unit vectors first, then at most 20 more.

    Upper confidence bound with kappa 5 (arXiv 1903.06631). Raises UsageError without the package.
    """
    optimizer = _optimizer(count)
    tried: list[tuple[float, list[float]]] = []

    def probe(weights: list[float]) -> float:
        tried.append((cost(weights), weights))
        optimizer.register(params=_named(weights), target=-tried[-1][0])
        return tried[-1][0]

    for index in range(count):
        probe([1.0 if other == index else 0.0 for other in range(count)])
    for _ in range(ITERATIONS):
        if min(tried)[0] <= 0:
            break
        suggested = optimizer.suggest()
        probe([float(suggested[_name(index)]) for index in range(count)])
    return min(tried, key=lambda row: row[0])[1]


def _optimizer(count: int) -> Any:
    try:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import UpperConfidenceBound
    except ImportError as error:
        raise UsageError(
            "scores cannot be combined",
            why="the package bayesian-optimization is not installed",
            remedy="pip install 'memfit[bayes]'",
        ) from error
    return BayesianOptimization(
        f=None,
        pbounds={_name(index): (-1.0, 1.0) for index in range(count)},
        acquisition_function=UpperConfidenceBound(kappa=KAPPA),
        random_state=0,
        verbose=0,
        allow_duplicate_points=True,
    )


def _named(weights: Sequence[float]) -> dict[str, float]:
    return {_name(index): weight for index, weight in enumerate(weights)}


def _name(index: int) -> str:
    return f"weight{index}"

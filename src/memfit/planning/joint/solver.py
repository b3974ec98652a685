"""Linear programs: built row by row, solved by HiGHS, and bounded from below by their own duals.

The interior point method runs without crossover: its solutions lie amid an optimal face, where a vertex has many
variables at a limit for no reason. They are exact to a few digits only, so that the bound is not the objective.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import highspy
import numpy as np

from memfit.arrays import Float64Array

INFINITY = float("inf")
_IPM, _SIMPLEX = 300, 100_000  # iterations: a program that needs more is in trouble
Term = tuple[int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A solution of a linear program.

    Attributes:
        values: The value of each column, within its limits.
        bound: No solution has an objective below this.
        objective: The objective of `values`, which meet the rows to a few digits.
    """

    values: Float64Array
    bound: float
    objective: float


@dataclass(slots=True)
class LinearProgram:
    """Minimises the sum of cost x value; every value is between 0 and its column's `upper`, which is finite."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def column(self, upper: float = 1.0, cost: float = 0.0) -> int:
        """Add a column; return its number."""
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, terms: Iterable[Term], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """Add a row; terms of one column add up."""
        summed: dict[int, float] = {}
        for column, factor in terms:
            summed[column] = summed.get(column, 0.0) + factor
        self.index += summed.keys()
        self.value += summed.values()
        self.start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def solve(self) -> Solution | None:
        """Solve the program, in as many iterations as are worth while: the same program has the same solution.

        Returns:
            The solution; None if there is none. Where the solver gives up, nothing is in it, and it bounds nothing.
        """
        limits = {"ipm_iteration_limit": _IPM, "simplex_iteration_limit": _SIMPLEX}
        solver = solver_of(self.model(), solver="ipm", run_crossover="off", **limits)
        solver.run()
        if solver.getModelStatus() in _GAVE_UP:  # its method of last resort
            solver.setOptionValue("solver", "simplex")
            solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return None
        found = solver.getSolution()
        if solver.getModelStatus() not in _SOLVED or not found.value_valid:
            return Solution(np.zeros(len(self.cost)), -INFINITY, 0.0)
        values = np.clip(np.array(found.col_value), 0.0, self.upper)
        bound = self._bound(np.array(found.row_dual)) if found.dual_valid else -INFINITY
        return Solution(values, bound, float(np.dot(values, self.cost)))

    def whole(self) -> Float64Array | None:
        """Return the columns of the best solution in which all are integers; None if there is none.

        Raises RuntimeError where the solver gives up.
        """
        solver = solver_of(self._of_integers(range(len(self.cost))), mip_rel_gap=0.0)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return None
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS gave up: {solver.getModelStatus()}")
        return np.array(solver.getSolution().col_value)

    def whole_bound(self, whole: Collection[int], seconds: float) -> float:
        """Return what no solution is below in which `whole` (not none) are integers: as high as it gets in that time.

        Of branch and bound, which is not made safe from rounding. Infinite if there is no such solution.
        """
        solver = solver_of(self._of_integers(whole), time_limit=seconds)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return INFINITY
        return float(solver.getInfo().mip_dual_bound)

    def _bound(self, dual: Float64Array) -> float:
        """Return the least that the Lagrangian of `dual` takes within the columns' limits: a bound for any dual.

        Neumaier and Shcherbina, Safe bounds in linear and mixed-integer linear programming, 2004.
        """
        lower, upper = np.array(self.row_lower), np.array(self.row_upper)
        limit = np.where(dual > 0, lower, upper)
        dual = np.where(np.isfinite(limit), dual, 0.0)
        reduced = np.array(self.cost) - self._transposed(dual)
        rows = float(np.dot(dual, np.where(np.isfinite(limit), limit, 0.0)))
        return rows + float(np.minimum(reduced, 0.0) @ np.array(self.upper))

    def _transposed(self, dual: Float64Array) -> Float64Array:
        rows = np.repeat(np.arange(len(self.row_lower)), np.diff(self.start))
        weights = np.array(self.value) * dual[rows]
        return np.bincount(self.index, weights, minlength=len(self.cost)).astype(np.float64)

    def _of_integers(self, whole: Collection[int]) -> highspy.HighsLp:
        model = self.model()
        kinds = [highspy.HighsVarType.kContinuous] * len(self.cost)
        for column in whole:
            kinds[column] = highspy.HighsVarType.kInteger
        model.integrality_ = kinds
        return model

    def model(self) -> highspy.HighsLp:
        """Return the program as HiGHS takes it."""
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.cost), len(self.row_lower)
        program.col_cost_, program.col_upper_ = np.array(self.cost), np.array(self.upper)
        program.col_lower_ = np.zeros(len(self.cost))
        program.row_lower_, program.row_upper_ = np.array(self.row_lower), np.array(self.row_upper)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array(self.start)
        program.a_matrix_.index_, program.a_matrix_.value_ = np.array(self.index), np.array(self.value)
        return program


class _Quiet(highspy.Highs):
    """HiGHS that prints nothing from its beginning on: since 1.16 a new one turns on callbacks, and says so."""

    def enableCallbacks(self) -> None:  # noqa: N802 (HiGHS')
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def solver_of(model: highspy.HighsLp, **options: str | float) -> highspy.Highs:
    """Return HiGHS with `model`, one thread, nothing to print, and `options` of its own."""
    solver = _Quiet()  # type: ignore[no-untyped-call]
    for option, value in {"output_flag": False, "threads": 1, **options}.items():
        solver.setOptionValue(option, value)
    solver.passModel(model)
    return solver


_SOLVED = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kUnknown,
           highspy.HighsModelStatus.kIterationLimit)  # fmt: skip
_GAVE_UP = (highspy.HighsModelStatus.kUnknown, highspy.HighsModelStatus.kSolveError)

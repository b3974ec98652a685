"""0/1 programs, solved by HiGHS's branch and bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import highspy
import numpy as np

from memfit.arrays import Float64Array

INFINITY = float("inf")
Term = tuple[int, float]


@dataclass(frozen=True, slots=True, eq=False)
class IntegerSolution:
    """A solution, and the objective that none is below."""

    values: Float64Array
    objective: float
    bound: float


@dataclass(slots=True)
class IntegerProgram:
    """Minimises the sum of cost x value; values are between 0 and 1, and whole where they are said to be."""

    cost: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, list[Term]]] = field(default_factory=list)

    def column(self, cost: float = 0.0, *, whole: bool = True) -> int:
        """Add a column; return its number."""
        self.cost.append(cost)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, terms: Iterable[Term], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """Add a row; terms of one column add up."""
        summed: dict[int, float] = {}
        for column, factor in terms:
            summed[column] = summed.get(column, 0.0) + factor
        self.rows.append((lower, upper, list(summed.items())))

    def solve(self, *, seconds: float, gap: float) -> IntegerSolution | None:
        """Solve the program.

        Arguments:
            seconds: The time limit.
            gap: It may end when the objective is known up to this part of it.

        Returns:
            The best solution found; None if there is none, or none was found in time.
        """
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        options = {"output_flag": False, "threads": 1, "time_limit": seconds, "mip_rel_gap": gap}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._program())
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:  # feasible
            return None
        values = np.array(solver.getSolution().col_value)
        return IntegerSolution(values, float(info.objective_function_value), float(info.mip_dual_bound))

    def _program(self) -> highspy.HighsLp:
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.cost), len(self.rows)
        program.col_cost_ = np.array(self.cost)
        program.col_lower_, program.col_upper_ = np.zeros(len(self.cost)), np.ones(len(self.cost))
        program.row_lower_ = np.array([lower for lower, _, _ in self.rows])
        program.row_upper_ = np.array([upper for _, upper, _ in self.rows])
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, _, terms in self.rows)])
        program.a_matrix_.index_ = np.array([column for _, _, terms in self.rows for column, _ in terms])
        program.a_matrix_.value_ = np.array([factor for _, _, terms in self.rows for _, factor in terms])
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        program.integrality_ = [kinds[whole] for whole in self.whole]
        return program

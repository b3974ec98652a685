"""0/1 programs, solved by HiGHS's branch and bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import highspy
import numpy as np

from memfit.arrays import Float64Array
from memfit.planning.joint.solver import INFINITY, LinearProgram, Term, solver_of


@dataclass(frozen=True, slots=True, eq=False)
class IntegerSolution:
    """A solution, and the objective that none is below."""

    values: Float64Array
    objective: float
    bound: float


@dataclass(slots=True)
class IntegerProgram:
    """Minimises the sum of cost x value; values are between 0 and 1, and whole where they are said to be."""

    fluid: LinearProgram = field(default_factory=LinearProgram)
    whole: list[bool] = field(default_factory=list)

    def column(self, cost: float = 0.0, *, whole: bool = True) -> int:
        """Add a column; return its number."""
        self.whole.append(whole)
        return self.fluid.column(cost=cost)

    def row(self, terms: Iterable[Term], lower: float = -INFINITY, upper: float = INFINITY) -> None:
        """Add a row; terms of one column add up."""
        self.fluid.row(terms, lower, upper)

    def solve(self, *, seconds: float, gap: float) -> IntegerSolution | None:
        """Solve the program.

        Arguments:
            seconds: The time limit.
            gap: It may end when the objective is known up to this part of it.

        Returns:
            The best solution found; None if there is none, or none was found in time.
        """
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model = self.fluid.model()
        model.integrality_ = [kinds[whole] for whole in self.whole]
        solver = solver_of(model, time_limit=seconds, mip_rel_gap=gap)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:  # feasible
            return None
        values = np.array(solver.getSolution().col_value)
        return IntegerSolution(values, float(info.objective_function_value), float(info.mip_dual_bound))

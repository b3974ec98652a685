import subprocess
import sys

import numpy as np
import pytest

from memfit.planning.joint.solver import LinearProgram

SOLVE = """
from memfit.planning.joint.solver import LinearProgram
program = LinearProgram()
program.row([(program.column(upper=2.0, cost=1.0), 1.0)], lower=0.5)
assert program.solve() is not None and program.whole_bound([0], 1.0) > 0.9
"""


def small():
    """Minimise x + 2 y with x + y >= 1, x <= 0.75."""
    program = LinearProgram()
    x, y = program.column(upper=0.75, cost=1.0), program.column(cost=2.0)
    program.row([(x, 0.5), (x, 0.5), (y, 1.0)], lower=1.0)
    return program


def test_a_program_is_solved_and_its_bound_is_no_more_than_its_optimum():
    solution = small().solve()
    assert solution.values == pytest.approx([0.75, 0.25], abs=1e-4)
    assert solution.bound <= 1.25 + 1e-9 and solution.bound == pytest.approx(1.25, abs=1e-4)


def test_any_dual_gives_a_bound():
    program = small()
    for dual in (-3.0, 0.0, 0.5, 1.0, 2.0, 50.0):
        assert program._bound(np.array([dual])) <= 1.25


def test_a_program_without_a_solution_has_none():
    program = small()
    program.row([(0, 1.0), (1, 1.0)], lower=2.0)
    assert program.solve() is None


@pytest.mark.parametrize(("whole", "least"), [((1,), 2.0), ((0,), 2.0), ((0, 1), 2.0)])
def test_integers_bound_it_from_higher_up(whole, least):
    assert small().whole_bound(whole, seconds=10.0) == pytest.approx(least, abs=1e-4)


def test_a_program_without_a_whole_solution_has_none():
    program = LinearProgram()
    program.row([(program.column(), 1.0), (program.column(), 1.0)], lower=1.4, upper=1.6)
    assert program.whole_bound((0,), 10.0) == 0.0
    assert program.whole_bound((0, 1), 10.0) == float("inf")


def test_without_time_it_is_no_more_than_the_optimum():
    assert small().whole_bound((0, 1), seconds=0.0) <= 2.0


def test_the_solver_prints_nothing():
    done = subprocess.run([sys.executable, "-c", SOLVE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")

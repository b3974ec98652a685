"""Rows between the remakings of different gaps: what one needs of another, and what it is made again for."""

from __future__ import annotations

from collections import defaultdict

from memfit.planning.joint.problem import Columns, Problem, Terms
from memfit.planning.joint.solver import LinearProgram
from memfit.planning.joint.stretches import Cut

_Run = tuple[int, int, int, int]
"""A gap, the first and the last op before which its storage may be made again, and the column of that."""


class Relations:
    """Adds the rows; the program's time is in units of `us`."""

    def __init__(self, problem: Problem, columns: dict[int, Columns], program: LinearProgram, us: float) -> None:
        self.problem, self.columns, self.program, self.us = problem, columns, program, us
        self.count = len(problem.trace.ops)
        self.runs: dict[int, list[_Run]] = defaultdict(list)  # by op that runs again
        self.hidden: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by op: before which ops, from, to
        self.hidden_runs: dict[int, int] = {}
        for op, first, last in problem.hidden:
            self.hidden[op].append((first, last))
        for number, idle in enumerate(problem.idle):
            for index, cut in enumerate(idle.cuts):
                self._run_again(number, index, cut)

    def _run_again(self, number: int, index: int, cut: Cut) -> None:
        for op in cut.runs:
            if number not in self.columns:
                self.hidden[op].append((cut.first, cut.op))
            elif index in self.columns[number].remake:
                self.runs[op].append((number, cut.first, cut.op, self.columns[number].remake[index]))

    def add(self, number: int) -> None:
        """Add the rows of gap `number`."""
        self._ask_for_inputs(number)
        self._serve_others(number)

    def _ask_for_inputs(self, number: int) -> None:
        """What is made again finds its inputs: these do not stay away at that op."""
        for index, cut in enumerate(self.problem.idle[number].cuts):
            remake = self.columns[number].remake.get(index)
            if remake is None:
                continue
            for need in cut.needs:
                away = self._staying_away(need, cut.op % self.count)
                if away:
                    self.program.row([(remake, 1.0), *away], upper=1.0)
            for want in cut.wants:
                gone = self._staying_gone(want, cut.first, cut.op)
                if gone:
                    self.program.row([(remake, 1.0), *gone], upper=1.0)

    def _serve_others(self, number: int) -> None:
        """What is made again before its own use is so for something else that is made again then, or along with it.

        That may be something without columns: one that needs it has the time of an op that reads it; one that it comes
        along with may be any.
        """
        for index, cut in enumerate(self.problem.idle[number].cuts):
            remake = self.columns[number].remake.get(index)
            if remake is None or not cut.runs or cut.op == self.problem.idle[number].end:
                continue
            if any(self._is_hidden(op, cut) for op in cut.runs):
                continue
            others = {
                column
                for op in cut.serves | cut.runs
                for other, first, last, column in self.runs[op]
                if other != number and first <= cut.op and cut.first <= last
            }
            others |= {self._hidden(op) for op in cut.serves if self._is_hidden(op, cut)}
            self.program.row([(remake, 1.0), *((column, -1.0) for column in sorted(others))], upper=0.0)

    def _is_hidden(self, op: int, cut: Cut) -> bool:
        """Return whether `op` may run again at `cut` for what has no columns."""
        return any(first <= cut.op and cut.first <= last for first, last in self.hidden[op])

    def _hidden(self, op: int) -> int:
        """Return the column that says how often `op` runs again for what has no columns."""
        if op not in self.hidden_runs:
            us = float(self.problem.again_us[op]) / self.us
            self.hidden_runs[op] = self.program.column(upper=float(self.count), cost=us)
        return self.hidden_runs[op]

    def _staying_away(self, number: int, op: int) -> Terms:
        cuts = self.problem.idle[number].cuts if number in self.columns else ()
        for index, cut in enumerate(cuts):
            if cut.op % self.count == op:
                return self.columns[number].stays_away(index)
        return []

    def _staying_gone(self, number: int, first: int, last: int) -> Terms:
        """Return what is nowhere when op `first` begins and not made again by op `last`; copies may return early."""
        cuts = self.problem.idle[number].cuts if number in self.columns else ()
        at = next((index for index, cut in enumerate(cuts) if first <= cut.op), None)
        if at is None:
            return []
        made = [index for index, cut in enumerate(cuts) if cut.first <= last and first <= cut.op]
        remake = self.columns[number].remake
        return self.columns[number].dropped(at) + [(remake[index], -1.0) for index in made if index in remake]

"""Checkmate (Jain et al., MLSys 2020): the least recomputation under a budget, as a 0/1 program over stages.

A stage is an op of the trace with what runs again before it (section 4). S says which values are there when a stage
begins, R which ops run again in it; a value that is made in a stage either stays for the stage's op and perhaps later
ones (back), or is freed after its last use in the stage. The rows of memory follow every run again and every op. There
are O(n^2) columns, and more for the frees: the program is for some tens of ops.

The original may keep a value longer than the program that it is made of does, free a kept one amid a stage, and drop
one without a later use. Remakings express none of these, so that the optimum is that of plans without them. Storages
that are written more than once, or whose ops may not run again, stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from memfit.baselines.policies.policy import too_large
from memfit.baselines.recomputing.integers import IntegerProgram
from memfit.baselines.recomputing.policy import mixed
from memfit.errors import UsageError
from memfit.ir import Plan, Recompute, Trace, accessing_ops, align_up
from memfit.machine import Machine
from memfit.planning.joint.again import corrected
from memfit.planning.joint.solver import INFINITY, Term
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import births, live_bytes
from memfit.simulate import load_bytes

MOST_OPS = 48
_SECONDS, _GAP = 60.0, 1e-4


@dataclass(frozen=True, slots=True)
class Optimum:
    """The remakings of the least time that was found, and the microseconds that no choice of them is below."""

    recomputes: tuple[Recompute, ...]
    added_us: float
    bound_us: float


def checkmate(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Return the optimum's plan; raises BudgetError if there is none, UsageError if the trace has too many ops."""
    values = Values.of(corrected(trace))
    found = optimum(values, budget_bytes)
    if found is None:
        raise too_large("checkmate", budget_bytes, int(load_bytes(trace).max()))
    made = with_recomputes(values, found.recomputes)
    return mixed("checkmate", trace, machine, budget_bytes, found.recomputes, made, ())


def optimum(values: Values, budget_bytes: int, *, seconds: float = _SECONDS) -> Optimum | None:
    """Solve the program.

    Arguments:
        values: The values of the trace.
        budget_bytes: What the arena may take.
        seconds: The time limit.

    Returns:
        The best remakings found; None if there are none, or none were found in time.

    Raises:
        UsageError: The trace has more than `MOST_OPS` ops.
    """
    if len(values.trace.ops) > MOST_OPS:
        raise UsageError(
            "the program is too large",
            why=f"the trace has {len(values.trace.ops)} ops, more than {MOST_OPS}",
            remedy="take another policy",
        )
    return _Stages(values, budget_bytes).solved(seconds)


class _Stages:
    """The program: columns by stage and storage (kept, back) or by stage and op (again)."""

    def __init__(self, values: Values, budget_bytes: int) -> None:
        self.values, self.trace, self.budget_bytes = values, values.trace, budget_bytes
        self.program = IntegerProgram()
        self.maker = self._makers()
        self.last_use = [max(ops, default=0) for ops in accessing_ops(self.trace)]
        self.made_by: dict[int, list[int]] = defaultdict(list)
        for storage, op in self.maker.items():
            self.made_by[op].append(storage)
        self.kept: dict[tuple[int, int], int] = {}
        self.back: dict[tuple[int, int], int] = {}
        self.again: dict[tuple[int, int], int] = {}
        for stage in range(len(self.trace.ops)):
            self._columns(stage)
        for stage in range(len(self.trace.ops)):
            self._inputs_are_there(stage)
            self._memory(stage)

    def _makers(self) -> dict[int, int]:
        """Return the ops of the storages that may be dropped: they are written once, by the op that allocates them."""
        born, found = births(self.trace), {}
        for storage, numbers in enumerate(self.values.of_storage):
            made = self.values.values[numbers[-1]]
            if len(numbers) == 2 and made.remakable and made.writer == born.get(storage):
                found[storage] = born[storage]
        return found

    def _lives(self, storage: int, stage: int) -> bool:
        return self.maker[storage] < stage < self.trace.storages[storage].free

    def _held(self, storage: int) -> int:
        return align_up(self.trace.storages[storage].size_bytes, self.trace.alignment)

    def _columns(self, stage: int) -> None:
        """Add what may be there when the stage begins, and what may run again; and how these follow each other."""
        for op in range(stage):
            if self._may_run_again(op, stage):
                self.again[stage, op] = self.program.column(self.trace.ops[op].duration_us)
        for storage in self.maker:
            if not self._lives(storage, stage):
                continue
            kept = self.kept[stage, storage] = self.program.column()
            # One that its op has just made may be kept. One without a later use stays: remakings end with a use.
            just_made = (stage - 1, storage) not in self.kept
            there = [] if just_made else [(column, -1.0) for column in self._there(stage - 1, storage)]
            stays = stage > self.last_use[storage]
            self.program.row([(kept, 1.0), *there], float(just_made) if stays else -INFINITY, float(just_made))
            back = self.back[stage, storage] = self.program.column()
            run = self.again.get((stage, self.maker[storage]))
            self.program.row([(back, 1.0), *([(run, -1.0)] if run is not None else [])], upper=0.0)
            self.program.row([(back, 1.0), (kept, 1.0)], upper=1.0)

    def _there(self, stage: int, storage: int) -> list[int]:
        return [self.kept[stage, storage], self.back[stage, storage]]

    def _may_run_again(self, op: int, stage: int) -> bool:
        """Whether an op makes droppable storages only, of others that are there at the stage or may be made."""
        written = list(self.values.written_by(op))
        if not written or any(self.values.values[value].storage not in self.maker for value in written):
            return False
        reads = {read for value in written for read in self.values.values[value].reads}
        return all(
            self.values.is_there(read, stage)
            or (self.values.values[read].storage in self.maker and self.values.values[read].writer is not None)
            for read in reads
        )

    def _inputs(self, op: int) -> set[int]:
        """Return the droppable storages that `op` reads."""
        return {s for s in self.trace.ops[op].reads if s in self.maker and self.maker[s] < op}

    def _inputs_are_there(self, stage: int) -> None:
        for storage in self._inputs(stage) | {s for s in self.trace.ops[stage].writes if (stage, s) in self.kept}:
            self.program.row([(column, 1.0) for column in self._there(stage, storage)], lower=1.0)
        for op in range(stage):
            run = self.again.get((stage, op))
            for storage in self._inputs(op) if run is not None else ():
                made = self.again.get((stage, self.maker[storage]))
                terms: list[Term] = [(run, -1.0)] if run is not None else []
                if (stage, storage) in self.kept:
                    terms.append((self.kept[stage, storage], 1.0))
                if made is not None:
                    terms.append((made, 1.0))
                self.program.row(terms, lower=0.0)

    def _memory(self, stage: int) -> None:
        """Bound the bytes during the stage's op, and during each op that runs again before it."""
        alive = [storage for storage in self.maker if (stage, storage) in self.kept]
        all_bytes = sum(map(self._held, alive))
        load = int(load_bytes(self.trace)[stage])
        kept: list[Term] = [(self.kept[stage, s], float(self._held(s))) for s in alive]
        back: list[Term] = [(self.back[stage, s], float(self._held(s))) for s in alive]
        self.program.row([*kept, *back], upper=self.budget_bytes - load + all_bytes)
        live = int(live_bytes(self.trace, aligned=True)[self.trace.ops[stage].first_tick]) + self.trace.pinned_bytes
        for op in range(stage):
            run = self.again.get((stage, op))
            if run is None:
                continue
            terms = [*kept, (run, float(self.values.allocated_bytes[op]))]
            terms += [term for s, term in zip(alive, back, strict=True) if self.maker[s] < op]
            terms += self._on_the_way(stage, op)
            self.program.row(terms, upper=self.budget_bytes - live + all_bytes)

    def _on_the_way(self, stage: int, op: int) -> list[Term]:
        """Return the terms of what was made in the stage, does not stay, and is read at `op` or after it."""
        terms: list[Term] = []
        for maker in range(op):
            made = self.again.get((stage, maker))
            for storage in self.made_by[maker] if made is not None else ():
                readers = [p for p in range(op, stage) if (stage, p) in self.again and storage in self._inputs(p)]
                if readers and made is not None:
                    held = self.program.column(whole=False)
                    stays: list[Term] = [(self.back[stage, storage], 1.0)] if (stage, storage) in self.back else []
                    for reader in readers:
                        row: list[Term] = [(held, 1.0), (made, -1.0), (self.again[stage, reader], -1.0), *stays]
                        self.program.row(row, lower=-1.0)
                    terms.append((held, float(self._held(storage))))
        return terms

    def solved(self, seconds: float) -> Optimum | None:
        solution = self.program.solve(seconds=seconds, gap=_GAP)
        if solution is None:
            return None
        chosen = np.array(solution.values) > 0.5
        recomputes = []
        for (stage, storage), column in self.back.items():
            if not chosen[column]:
                continue
            ops = tuple(op for op in range(stage) if (stage, op) in self.again and chosen[self.again[stage, op]])
            last = max(
                (s for s in range(stage) if s == self.maker[storage] or self._is_there(chosen, s, storage)), default=0
            )
            recomputes.append(Recompute(storage, last, stage, ops))
        return Optimum(tuple(recomputes), solution.objective, solution.bound)

    def _is_there(self, chosen: np.typing.NDArray[np.bool_], stage: int, storage: int) -> bool:
        return (stage, storage) in self.kept and any(chosen[column] for column in self._there(stage, storage))

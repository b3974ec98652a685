"""A budget that is a share of the peak: it becomes a limit when the first whole iteration has told the peak."""

from __future__ import annotations

from collections.abc import Callable

from memfit.errors import BudgetError
from memfit.ir import Demand, Trace, align_up
from memfit.messages import say, say_for_all
from memfit.planning.lifetimes import minimum_budget, operands, peak_live
from memfit.running.engine import EngineModule
from memfit.running.session.ended import FirstIteration
from memfit.running.session.settings import Settings
from memfit.units import format_bytes, format_least_bytes, format_part


class Share:
    """Turns the share into a limit. In a session with another budget, or without one, nothing is pending."""

    def __init__(self, engine: EngineModule, settings: Settings, adopt_visible: Callable[[], None]) -> None:
        self._engine = engine
        self._settings = settings
        self._adopt_visible = adopt_visible
        self.pending = settings.budget is not None and settings.budget.bytes is None
        """Whether the share is not yet a limit."""
        self._is_of_a_pass = False

    def apply(self, first: FirstIteration, is_pass: bool) -> None:
        """Make the share of the first iteration's peak the limit. Raises BudgetError where that is too little.

        `is_pass`: the iteration was a forward pass without gradients.
        """
        trace = first.new_trace()
        assert self._settings.budget is not None and trace is not None
        peak_bytes = first.note_peak_of(trace)
        budget_bytes = self._settings.budget.resolve(peak_bytes)
        self._engine.set_peak(peak_bytes)
        needed, op = minimum_budget(trace)
        needed = align_up(needed, self._engine.page_bytes(needed))
        if needed > budget_bytes and self._engine.mapping(budget_bytes) == "never":
            raise infeasible(trace, budget_bytes, needed, op)
        self._adopt_visible()
        self._engine.set_budget(budget_bytes)
        self._engine.allow_growth(self._settings.grow)
        self.pending, self._is_of_a_pass = False, is_pass
        self._tell(trace, budget_bytes, peak_bytes)

    def tell_of_training(self) -> None:
        """Say once that what trains now has a limit that is a share of forward passes."""
        if self._is_of_a_pass:
            self._is_of_a_pass = False
            say_for_all(
                "memfit: warning: the limit is a share of the forward passes that came before training, which needs "
                "more; make the optimizer before the first pass, or give the budget in bytes"
            )

    def _tell(self, trace: Trace, budget_bytes: int, peak_bytes: int) -> None:
        if self._settings.announce is not None:
            self._settings.announce(f"the limit is in force: {format_part(budget_bytes, peak_bytes)} of the peak")
        if trace.before is not None and trace.before.total_bytes > budget_bytes:
            say(f"memfit: {_exceeds(trace.before, budget_bytes, self._settings.grow)}")


def _exceeds(before: Demand, budget_bytes: int, grow: bool) -> str:
    """Say that an op which ran before the limit would not fit in it."""
    at = f" at {before.source}" if before.source else ""
    again = "is given that" if grow else "may not fit"
    return (
        f"{before.name}{at} ran before the first whole iteration and needed {format_bytes(before.total_bytes)}, more "
        f"than the limit of {format_bytes(budget_bytes)}: if it runs again it {again}"
    )


def infeasible(trace: Trace, budget_bytes: int, needed_bytes: int, op_index: int) -> BudgetError:
    """Return the error for a budget below the smallest feasible one, which op `op_index` sets."""
    op, peak = trace.ops[op_index], peak_live(trace, aligned=True)[0]
    percent = min(-(-100 * needed_bytes // max(peak, 1)), 100)
    tensors = [
        f"{format_bytes(s.size_bytes)} {s.category}" + (f" from {s.source}" if s.source else "")
        for s in (trace.storages[i] for i in operands(trace, op_index))
    ]
    return BudgetError(
        f"the budget of {format_part(budget_bytes, peak)} of the peak, cannot be met",
        why=f"{op.name} at {op.source or 'an unknown line'} needs {format_bytes(needed_bytes)} at once: "
        f"{', '.join(tensors)}, and {format_bytes(op.workspace_bytes)} that it allocates",
        remedy=f"the smallest feasible budget is {format_least_bytes(needed_bytes)}, {percent} % "
        f"(--budget {percent}%); a smaller batch lowers it",
        required_bytes=needed_bytes,
        op=op.name,
        source=op.source,
        tensors=tensors,
    )

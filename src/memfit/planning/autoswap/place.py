"""Stays of a trace's storages, on a clock of ticks and ops, and swaps whose stays fit the budget with addresses.

The clock counts ticks and the beginnings of ops, in their order, so that bytes freed for an op are there for what comes
in at the same op.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from memfit.errors import BudgetError
from memfit.ir import BEFORE_FIRST_TICK, Category, Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import Thresholds
from memfit.planning.autoswap.search import SwapPlan, plan_under_budget
from memfit.planning.fit import Fitted, Infeasible, fit_within
from memfit.planning.lifetimes import successors
from memfit.planning.stays import Span, Stays, place_stays, stays_of_life, stays_of_recurring, swaps_by_storage
from memfit.units import format_bytes

_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class TickClock:
    """Positions of ticks and of ops' beginnings in one row; `period` is their number, the iteration's length."""

    first_ticks: tuple[int, ...]
    ticks: int

    @classmethod
    def of(cls, trace: Trace) -> TickClock:
        """Return the clock of `trace`."""
        return cls(tuple(op.first_tick for op in trace.ops), trace.ticks)

    @property
    def period(self) -> int:
        """The length of an iteration."""
        return self.ticks + len(self.first_ticks)

    def after_tick(self, tick: int) -> int:
        """Return the time right after `tick`; that of BEFORE_FIRST_TICK is the beginning."""
        return 0 if tick == BEFORE_FIRST_TICK else tick + bisect_right(self.first_ticks, tick) + 1

    def at_op(self, op: int) -> int:
        """Return the time at which op `op` begins, counted on over the iteration's end."""
        round_, within = divmod(op, len(self.first_ticks))
        return round_ * self.period + self.first_ticks[within] + within + 1

    def absence(self, swap: Swap) -> Span:
        """Return when the bytes of `swap` are away."""
        return self.at_op(swap.free_by), self.at_op(swap.in_start)


def stays_of_trace(trace: Trace, swaps: tuple[Swap, ...]) -> Stays:
    """Return every stay in the arena, by storage and time; its owner is the storage."""
    clock, by_storage = TickClock.of(trace), swaps_by_storage(swaps)
    rows = []
    for storage, life in _lives(trace, clock).items():
        absences = [clock.absence(swaps[index]) for index in by_storage.get(storage, ())]
        recurs = trace.recurs(trace.storages[storage])
        if absences and recurs:
            spans = stays_of_recurring(absences, clock.period)
        else:
            returns = all(swaps[index].returns for index in by_storage.get(storage, ()))
            spans = stays_of_life(life, absences, returns=returns)
        rows += [(storage, *span, trace.storages[storage].size_bytes) for span in spans]
    return Stays.from_rows(rows, clock.period)


def with_footprint(trace: Trace, plan: Plan, *, effort: float = 1.0) -> Plan:
    """Return `plan` with the bytes it needs once every stay has an address; `effort` in seconds.

    The footprint counts the pinned bytes too. The addresses are not kept: a run finds its own, for the storages of its
    own iterations.
    """
    placed = place_stays(stays_of_trace(trace, plan.swaps), alignment=trace.alignment, effort=effort)
    return replace(plan, footprint_bytes=placed.packing.footprint + trace.pinned_bytes)


def plan_with_addresses(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    effort: float = 4.0,
    seed: int = 0,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
) -> SwapPlan:
    """Return swaps that fit in `budget_bytes` with addresses: asked again with less where these need more.

    Raises BudgetError as `plan_under_budget` does, or if no round's footprint fits.
    """
    footprints: list[int] = []

    def attempt(limit_bytes: int) -> Fitted[SwapPlan] | Infeasible:
        try:
            found = plan_under_budget(trace, machine, limit_bytes, effort=effort / 2, seed=seed, thresholds=thresholds)
        except BudgetError as error:
            if error.required_bytes is None or not footprints:
                raise  # it names the budget, which no addresses have lowered yet
            return Infeasible(error.required_bytes)
        plan = replace(with_footprint(trace, found.plan, effort=effort / 4), budget_bytes=budget_bytes)
        footprints.append(plan.footprint_bytes)
        return Fitted(plan.footprint_bytes, replace(found, plan=plan))

    fitted = fit_within(budget_bytes, attempt, rounds=_ROUNDS)
    if fitted is None:
        raise no_addresses(budget_bytes, min(footprints))
    return fitted


def no_addresses(budget_bytes: int, least_bytes: int) -> BudgetError:
    """Return the error that the placements found in `budget_bytes` need `least_bytes`."""
    return BudgetError(
        f"no addresses within {format_bytes(budget_bytes)} were found",
        why=f"the smallest footprint found is {least_bytes} bytes: its placements leave holes",
        remedy=f"allow {format_bytes(least_bytes)}, or spend more effort",
        required_bytes=least_bytes,
    )


def _lives(trace: Trace, clock: TickClock) -> dict[int, Span]:
    """Return when each storage is alive: once for one that the next iteration goes on with under another number."""
    successor, lives = successors(trace), {}
    # Where none of the gradients was there before, the next iteration begins without those of this one, too.
    clears_gradients = not any(one.born_before and one.category is Category.GRADIENT for one in trace.storages)
    continued = set(successor.values())
    for index in range(len(trace.storages)):
        if index not in continued:
            begin, end = _life(trace, clock, index, successor.get(index))
            if clears_gradients and trace.storages[index].category is Category.GRADIENT:
                end = min(end, clock.period)
            shift = begin // clock.period * clock.period
            lives[index] = (begin - shift, end - shift)
    return {index: (begin, end) for index, (begin, end) in lives.items() if end > begin}


def _life(trace: Trace, clock: TickClock, index: int, successor: int | None) -> Span:
    storage = trace.storages[index]
    begin, end = clock.after_tick(storage.alloc_tick), clock.after_tick(storage.free_tick)
    if successor is not None:
        return begin, clock.period + clock.after_tick(trace.storages[successor].free_tick)
    if trace.recurs(storage):
        return 0, clock.period
    if trace.outlives(storage):  # with no successor: as if it were freed when the next one is allocated
        return begin, begin + clock.period
    return begin, end

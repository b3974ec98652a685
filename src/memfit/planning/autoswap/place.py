"""SmartPool under AutoSwap: a swapped storage is several stays in the arena, each with an address of its own.

The clock counts ticks and the beginnings of ops, in their order, so that bytes freed for an op are there for what comes
in at the same op. It is circular: an iteration follows on itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.errors import BudgetError
from memfit.ir import BEFORE_FIRST_TICK, Placement, Plan, Swap, Trace
from memfit.machine import Machine
from memfit.planning.autoswap.candidates import Thresholds
from memfit.planning.autoswap.search import SwapPlan, plan_under_budget
from memfit.planning.packing import Lifetimes, pack
from memfit.units import format_bytes

_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Clock:
    """Positions of ticks and of ops' beginnings in one row; `period` is their number, the iteration's length."""

    first_ticks: tuple[int, ...]
    ticks: int

    @classmethod
    def of(cls, trace: Trace) -> Clock:
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


def stays(trace: Trace, swaps: Sequence[Swap]) -> list[Placement]:
    """Return every stay in the arena, by storage and time on the clock, with no offset (-1) yet.

    A stay begins within the iteration and may end in the next one, or later.
    """
    clock = Clock.of(trace)
    by_storage: dict[int, list[Swap]] = defaultdict(list)
    for swap in swaps:
        by_storage[swap.storage].append(swap)
    found = []
    for storage, (begin, end) in _lives(trace, clock).items():
        for a, b in _cut(trace, clock, storage, begin, end, by_storage.get(storage, ())):
            shift = a // clock.period * clock.period
            found.append(Placement(storage, a - shift, b - shift, -1))
    return found


def place(trace: Trace, plan: Plan, *, effort: float = 1.0) -> Plan:
    """Return `plan` with the address of every stay, packed in circular time; `effort` in seconds.

    `footprint_bytes` counts the pinned bytes too. A stay longer than the iteration has several, used in turn.
    """
    found = stays(trace, plan.swaps)
    table = Lifetimes(
        np.array([stay.begin for stay in found], dtype=np.int64),
        np.array([stay.end for stay in found], dtype=np.int64),
        np.array([trace.storages[stay.storage].size_bytes for stay in found], dtype=np.int64),
    )
    packing = pack(table, alignment=trace.alignment, period=Clock.of(trace).period, effort=effort)
    of_slot = np.repeat(np.arange(len(found)), packing.slots).tolist()
    placements = tuple(
        replace(found[index], offset_bytes=offset)
        for index, offset in zip(of_slot, packing.offsets.tolist(), strict=True)
    )
    return replace(plan, placements=placements, footprint_bytes=packing.footprint + trace.pinned_bytes)


def plan_with_addresses(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    *,
    effort: float = 4.0,
    seed: int = 0,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 (frozen)
) -> SwapPlan:
    """Return swaps and addresses within `budget_bytes`: asked again with less where the addresses need more.

    Raises BudgetError as `plan_under_budget` does, or if no round's footprint fits.
    """
    allowed, least = budget_bytes, None
    for _ in range(_ROUNDS):
        found = plan_under_budget(trace, machine, allowed, effort=effort / 2, seed=seed, thresholds=thresholds)
        placed = replace(place(trace, found.plan, effort=effort / 4), budget_bytes=budget_bytes)
        if placed.footprint_bytes <= budget_bytes:
            return replace(found, plan=placed)
        least = min(least or placed.footprint_bytes, placed.footprint_bytes)
        allowed -= placed.footprint_bytes - budget_bytes
        if allowed <= 0:
            break
    raise BudgetError(
        f"no addresses within {format_bytes(budget_bytes)} were found",
        why=f"the smallest footprint found is {least} bytes, since what is alive does not lie without holes",
        remedy=f"allow {format_bytes(least or 0)}, or more effort",
        required_bytes=least,
    )


def _lives(trace: Trace, clock: Clock) -> dict[int, tuple[int, int]]:
    """Return when each storage is alive: once for one that the next iteration goes on with under another number."""
    heirs = _heirs(trace)
    lives = {}
    for index, storage in enumerate(trace.storages):
        if index in heirs.values():
            continue
        begin, end = clock.after_tick(storage.alloc_tick), clock.after_tick(storage.free_tick)
        if index in heirs:
            end = clock.period + clock.after_tick(trace.storages[heirs[index]].free_tick)
        elif trace.recurs(storage):
            begin, end = 0, clock.period
        elif trace.outlives(storage):  # with no heir: as if it were freed when its successor is allocated
            end = begin + clock.period
        lives[index] = (begin % clock.period, end - begin // clock.period * clock.period)
    return {index: (begin, end) for index, (begin, end) in lives.items() if end > begin}


def _heirs(trace: Trace) -> dict[int, int]:
    """Return, for what is allocated in this iteration and freed in the next, the one of its size freed in this."""
    left: dict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(trace.storages):
        if storage.born_before and not trace.outlives(storage):
            left[storage.size_bytes].append(index)
    heirs = {}
    for index, storage in enumerate(trace.storages):
        if not storage.born_before and trace.outlives(storage) and left[storage.size_bytes]:
            heirs[index] = left[storage.size_bytes].pop(0)
    return heirs


def _cut(
    trace: Trace, clock: Clock, storage: int, begin: int, end: int, swaps: Sequence[Swap]
) -> Iterator[tuple[int, int]]:
    """Yield what is left of a life when the absences are taken out of it."""
    away = sorted((clock.at_op(swap.free_by), clock.at_op(swap.in_start)) for swap in swaps)
    if away and trace.recurs(trace.storages[storage]):
        begin, end = away[0][1], away[0][0] + clock.period
        away = away[1:]
    for gone, back in away:
        if gone > begin:
            yield begin, min(gone, end)
        begin = max(begin, back)
    if end > begin:
        yield begin, end

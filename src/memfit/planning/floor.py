"""The smallest feasible budget of plans, and the storages that set it: what one op has to have in the arena at once.

It is the same with remakings and without them: whatever leaves, by a copy or to be made again, leaves in a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from memfit.ir import Trace, accessing_ops, align_up
from memfit.planning.autoswap.candidates import ANY_GAP, candidates, end_of
from memfit.planning.autoswap.search import smallest_budget
from memfit.planning.lifetimes import births, live_after, live_bytes, successors


class Cause(StrEnum):
    """The reason why a storage is in the arena during an op."""

    USED = "used by the op"
    PINNED = "pinned: its address is known outside"
    MADE = "allocated by the op"
    NOT_YET = "not used yet"
    NO_MORE = "not used any more, but not freed yet"
    NEVER = "used by no op of the iteration"


@dataclass(frozen=True, slots=True)
class Need:
    """A storage that has to be in the arena, with its bytes there."""

    storage: int
    held_bytes: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Floor:
    """The smallest feasible budget, the op that sets it, and what it consists of, the largest first."""

    budget_bytes: int
    op: int
    pinned_bytes: int
    needs: tuple[Need, ...]


def floor_of(trace: Trace) -> Floor:
    """Return the smallest budget that any plan of swaps and remakings meets, and what sets it."""
    budget_bytes, op = smallest_budget(trace)
    uses, born_in = accessing_ops(trace), births(trace)
    there = set(live_after(trace, fullest_tick(trace, op))) - _away(trace, op)
    needs = [
        Need(
            s,
            align_up(trace.storages[s].size_bytes, trace.alignment),
            _cause(uses[s], op, trace.stays_from(trace.storages[s]), is_made_here=born_in.get(s) == op),
        )
        for s in there
        if trace.storages[s].size_bytes > 0
    ]
    needs.sort(key=lambda need: (-need.held_bytes, need.storage))
    return Floor(budget_bytes, op, trace.pinned_bytes, tuple(needs))


def _away(trace: Trace, op: int) -> set[int]:
    """Return the storages that may be away during `op`."""
    later, next_of = op + len(trace.ops), successors(trace)
    gone = set()
    for gap in candidates(trace, ANY_GAP):
        if gap.after < op < end_of(trace, gap):
            gone.add(gap.storage)
        if gap.after < later < end_of(trace, gap):  # what left in the last iteration: it comes back, or this one is it
            gone.add(gap.storage if gap.returns else next_of.get(gap.storage, gap.storage))
    return gone


def fullest_tick(trace: Trace, op: int) -> int:
    """Return the number of ticks at which the live bytes are most from the beginning of `op` to that of the next."""
    begin = trace.ops[op].first_tick if op else 0
    end = trace.ops[op + 1].first_tick if op + 1 < len(trace.ops) else trace.ticks
    span = live_bytes(trace, aligned=True)[begin : end + 1]
    return begin + int(span.argmax())


def _cause(uses: Sequence[int], op: int, pinned_from: int | None, *, is_made_here: bool) -> Cause:
    """Return why a storage with these `uses` cannot be away during `op`: it is in none of its gaps."""
    if is_made_here:
        return Cause.MADE
    if op in uses:
        return Cause.USED
    if pinned_from is not None and pinned_from <= op:
        return Cause.PINNED
    if not uses:
        return Cause.NEVER
    return Cause.NO_MORE if uses[-1] < op else Cause.NOT_YET

"""How a value that has gone is made again: the ops to run, and the values that have to be there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from memfit.ir import align_up
from memfit.planning.joint.values import Value, Values
from memfit.planning.lifetimes import Gap

MOST_OPS = 32
"""The longest recipe: longer ones are never worth their time, and hold too much at once."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to make one value again directly before one op of the trace.

    Attributes:
        ops: The ops to run, in their order.
        needs: The numbers of the values that have to be there: their storages hold them at this op.
        us: Microseconds of the ops when they run again.
        room_bytes: For each op, what it allocates and its inputs that are made on the way take at least.
    """

    ops: tuple[int, ...]
    needs: tuple[int, ...]
    us: float
    room_bytes: tuple[int, ...]


def recipe_of(
    values: Values, value: int, op: int, most_ops: int = MOST_OPS, away: Collection[int] = ()
) -> Recipe | None:
    """Find how to make a value again.

    Its writer runs again, and for every input that is not there any more the writer of that, and so on. A value that
    was changed in place is made by all writers of its storage, one after the other.

    Arguments:
        values: The values of the trace.
        value: The number of the value.
        op: It is made directly before this op.
        most_ops: The most ops to run.
        away: The numbers of values that are not there though their storages live: they are made on the way.

    Returns:
        The recipe; None if an op of it may not run again, an input is lost for good, or the recipe is too long.
    """
    ops: set[int] = set()
    needs: set[int] = set()
    for made in _followed(values, value, op, away):
        if made.writer is None or not made.remakable:
            return None
        ops.add(made.writer)
        if len(ops) > most_ops:
            return None
        needs.update(read for read in made.reads if values.is_there(read, op) and read not in away)
    ordered = tuple(sorted(ops))
    us = sum(values.again_us[p] for p in ordered)
    return Recipe(ordered, tuple(sorted(needs)), us, tuple(_room_bytes(values, p, op) for p in ordered))


def may_run(values: Values, value: int, op: int) -> set[int]:
    """Return all ops that a recipe of `value` right before `op`, or an earlier op of the same gap, may run."""
    followed = _followed(values, value, op, ())
    return {made.writer for made in followed if made.writer is not None and made.remakable}


def _followed(values: Values, value: int, op: int, away: Collection[int]) -> Iterator[Value]:
    """Yield what has to be made for `value` right before `op`: itself, and what it is made from and is not there."""
    wanted, seen = [value], {value}
    while wanted:
        made = values.values[wanted.pop()]
        yield made
        for read in made.reads if made.remakable else ():
            if read not in seen and (read in away or not values.is_there(read, op)):
                seen.add(read)
                wanted.append(read)


def recipe_at_end(values: Values, gap: Gap) -> Recipe | None:
    """Find how to make the storage of `gap` again at its end.

    One that no op uses again, and that is freed in the iteration, is dropped for good. It is not made again, but it has
    to be possible until it is freed, since somebody may ask for its bytes after all.

    Returns:
        The recipe; None if it cannot be made again, or if the gap runs over the iteration's end.
    """
    if gap.cyclic:
        return None
    op = wanted_until(values, gap)
    return recipe_of(values, values.before(gap.storage, op), op)


def wanted_until(values: Values, gap: Gap) -> int:
    """Return the op before which the storage of `gap`, which is not cyclic, may still be made again."""
    return gap.before if gap.returns else values.trace.storages[gap.storage].free


def remaking_us(values: Values, gap: Gap) -> float | None:
    """Return the microseconds of what runs again if the storage of `gap` is dropped; None if it cannot be."""
    recipe = recipe_at_end(values, gap)
    if recipe is None:
        return None
    return recipe.us if gap.returns else 0.0


def _room_bytes(values: Values, maker: int, op: int) -> int:
    """Return the bytes that `maker` needs, run before `op`, beside what is there."""
    reads = {read for made in values.written_by(maker) for read in values.values[made].reads}
    passing = {values.values[read].storage for read in reads if not values.is_there(read, op)}
    return values.allocated_bytes[maker] + sum(
        align_up(values.trace.storages[storage].size_bytes, values.trace.alignment) for storage in passing
    )

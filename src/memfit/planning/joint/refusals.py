"""The reason why a storage cannot be made again at the end of a gap: the op, and the rule that it meets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from memfit.planning.joint.again import Rule, rule_against
from memfit.planning.joint.recipes import MOST_OPS, wanted_until
from memfit.planning.joint.values import Value, Values
from memfit.planning.lifetimes import Gap


class Loss(StrEnum):
    """A reason why a value is lost for good, other than an op that does not run again whatever it writes."""

    CYCLIC = "the gap runs over the iteration's end"
    UNUSED = "no op uses it any more, and it is freed only in the next iteration"
    BEFORE = "it held this before the iteration"
    UNWRITTEN = "no op of the iteration wrote it"
    OUTLIVES = "it writes weights, optimizer state or statistics, which outlive the iteration"
    PINNED = "its address is known outside, where it may be written to"
    SECOND = "it writes a second storage that was there before"
    TOO_LONG = f"more than {MOST_OPS} ops would have to run again"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a storage cannot be made again.

    Attributes:
        reason: The rule.
        op: The op that may not run again; None if that is not at fault.
        storage: The storage whose value is lost; None if the recipe as a whole is at fault.
    """

    reason: Rule | Loss
    op: int | None = None
    storage: int | None = None


def refusal(values: Values, gap: Gap) -> Refusal | None:
    """Return why the storage of `gap` cannot be made again at its end; None if it can.

    Of several reasons it is the one of the fewest ops on the way to the storage.
    """
    if gap.cyclic:
        return Refusal(Loss.CYCLIC if gap.returns else Loss.UNUSED)
    end = wanted_until(values, gap)
    first = values.before(gap.storage, end)
    wanted, seen, ops = deque([first]), {first}, set()
    while wanted:
        made = values.values[wanted.popleft()]
        lost = _lost(values, made)
        if lost is not None:
            return lost
        ops.add(made.writer)
        for read in made.reads:
            if read not in seen and not values.is_there(read, end):
                seen.add(read)
                wanted.append(read)
    return Refusal(Loss.TOO_LONG) if len(ops) > MOST_OPS else None


def _lost(values: Values, made: Value) -> Refusal | None:
    storage = values.trace.storages[made.storage]
    if made.writer is None:
        return Refusal(Loss.BEFORE if storage.born_before else Loss.UNWRITTEN, None, made.storage)
    if made.remakable:
        return None
    rule = rule_against(values.trace.ops[made.writer])
    if rule is None and storage.pinned_from is not None:
        return Refusal(Loss.PINNED, None, made.storage)
    written = Loss.OUTLIVES if values.trace.recurs(storage) else Loss.SECOND
    return Refusal(rule or written, made.writer, made.storage)

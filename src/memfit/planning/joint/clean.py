"""Clean copies: the gaps in which the tier may have got the copy with which a storage may leave again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memfit.ir import Trace
from memfit.planning.joint.stretches import Idle


def copied_before(trace: Trace, idle: Sequence[Idle]) -> dict[int, list[int]]:
    """Return, for each gap's number, those of the gaps of its storage since the last write.

    A gap that is among its own is of a storage that nothing writes, whose copy is clean for ever.
    """
    written: dict[int, set[int]] = defaultdict(set)
    for op, each in enumerate(trace.ops):
        for storage in each.writes:
            written[storage].add(op)
    by_storage: dict[int, list[int]] = defaultdict(list)
    for number in sorted(range(len(idle)), key=lambda number: idle[number].gap.after):
        by_storage[idle[number].gap.storage].append(number)
    found = {}
    for storage, own in by_storage.items():
        recurs = trace.recurs(trace.storages[storage])
        for position, number in enumerate(own):
            found[number] = _since_write(idle, own, position, written[storage], recurs=recurs)
    return found


def _since_write(idle: Sequence[Idle], own: list[int], position: int, written: set[int], *, recurs: bool) -> list[int]:
    if recurs and not written:
        return list(own)
    found: list[int] = []
    for step in range(1, len(own)):
        if step > position and not recurs:
            break
        # From the end of one gap to the beginning of the next there are uses, and perhaps a write.
        begin, end = idle[own[position - step]].gap.before, idle[own[position - step + 1]].gap.after
        if any(begin <= op <= end if begin <= end else (op >= begin or op <= end) for op in written):
            break
        found.append(own[position - step])
    return found

"""Independent checker of a plan's maps against its trace: says which promise is broken first, and where.

It shares no code with the planner. Whether what the ops then hold fits the budget, and whether what is mapped is there
when an op uses it otherwise, is a question for `memfit.validate_plan`, about the trace in which maps are carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from memfit.errors import MemfitError
from memfit.ir import Map, Plan, Trace


class MapPromise(StrEnum):
    """The promises of a plan's maps."""

    OP = "known ops, each once"
    STORAGE = "storages that the op uses or allocates"
    PINNED = "not pinned"
    BORN = "mapped wherever it is used"
    FRAMES = "whole frames"
    REMADE = "not made again"


@dataclass(frozen=True, slots=True)
class MapViolation:
    """A broken promise.

    Attributes:
        promise: The promise.
        message: One sentence with the figures.
        op: The index of the op, if there is one.
    """

    promise: MapPromise
    message: str
    op: int | None = None

    def __str__(self) -> str:
        return f"{self.promise}: {self.message}"


class InvalidMapsError(MemfitError):
    """The maps of a plan break a promise; `violation` says which."""

    def __init__(self, violation: MapViolation) -> None:
        super().__init__(str(violation), remedy="plan this trace again; this plan must not be used")
        self.violation = violation


def check_maps(trace: Trace, plan: Plan) -> MapViolation | None:
    """Check the maps of a plan against its trace.

    Arguments:
        trace: The recorded iteration.
        plan: The plan.

    Returns:
        The first broken promise, or None if the maps can be carried out.
    """
    last = -1
    for each in plan.maps:
        if not last < each.op < len(trace.ops):
            text = f"a map of op {each.op} comes after one of op {last}, and the trace has {len(trace.ops)} ops"
            return MapViolation(MapPromise.OP, text, each.op)
        last = each.op
        broken = _check_storages(trace, each) or _check_frames(trace, each)
        if broken is not None:
            return broken
    by_op = {each.op: frozenset(each.storages) for each in plan.maps}
    return _check_born(trace, by_op) or _check_remade(plan, by_op)


def require_valid_maps(trace: Trace, plan: Plan) -> None:
    """Refuse a plan whose maps are broken.

    Arguments:
        trace: The recorded iteration.
        plan: The plan.

    Raises:
        InvalidMapsError: The maps cannot be carried out.
    """
    violation = check_maps(trace, plan)
    if violation is not None:
        raise InvalidMapsError(violation)


def _allocated_in(trace: Trace, storage: int, op: int) -> bool:
    """Return whether the storage is allocated between the beginning of the op and that of the next."""
    end = trace.ops[op + 1].first_tick if op + 1 < len(trace.ops) else trace.ticks
    one = trace.storages[storage]
    return trace.ops[op].first_tick <= one.alloc_tick < end and one.alloc == op


def _check_storages(trace: Trace, its: Map) -> MapViolation | None:
    op = trace.ops[its.op]
    for storage in its.storages:
        is_known = 0 <= storage < len(trace.storages)
        if is_known and trace.storages[storage].pinned_from is not None:
            return MapViolation(MapPromise.PINNED, f"op {its.op} maps storage {storage}, which is pinned", its.op)
        if is_known and (storage in (*op.reads, *op.writes) or _allocated_in(trace, storage, its.op)):
            continue
        return MapViolation(MapPromise.STORAGE, f"op {its.op} has nothing to do with storage {storage}", its.op)
    if list(its.storages) != sorted(set(its.storages)) or not its.storages:
        text = f"op {its.op} maps storages {its.storages[:8]}, not each once and in order"
        return MapViolation(MapPromise.STORAGE, text, its.op)
    return None


def _check_frames(trace: Trace, its: Map) -> MapViolation | None:
    if its.frame_bytes >= 0 and its.frame_bytes % trace.alignment == 0:
        return None
    text = f"op {its.op} has frames of {its.frame_bytes} bytes, no multiple of {trace.alignment}"
    return MapViolation(MapPromise.FRAMES, text, its.op)


def _check_born(trace: Trace, by_op: Mapping[int, frozenset[int]]) -> MapViolation | None:
    """Check that what is mapped by the op that allocates it is by all that use it."""
    born = {s for op, storages in by_op.items() for s in storages if _allocated_in(trace, s, op)}
    for index, op in enumerate(trace.ops):
        for storage in sorted(born.intersection((*op.reads, *op.writes)) - by_op.get(index, frozenset())):
            text = f"op {index} uses storage {storage}, which is mapped from its birth on, and does not map it"
            return MapViolation(MapPromise.BORN, text, index)
    return None


def _check_remade(plan: Plan, by_op: Mapping[int, frozenset[int]]) -> MapViolation | None:
    """Check that no storage that is mapped is dropped, and that no op that maps runs again."""
    mapped = frozenset[int]().union(*by_op.values())
    for number, one in enumerate(plan.recomputes):
        again = sorted(by_op.keys() & set(one.ops))
        if one.storage in mapped:
            return MapViolation(MapPromise.REMADE, f"recompute {number} drops storage {one.storage}, which is mapped")
        if again:
            return MapViolation(MapPromise.REMADE, f"recompute {number} runs op {again[0]} again, which maps storages")
    return None

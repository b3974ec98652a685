"""The category of each storage: as an optimizer names it, otherwise as the ops use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memfit.ir import Category, Op, Phase

if TYPE_CHECKING:
    from memfit.tracing.build import Roles


def categorise(
    ops: Sequence[Op], blocks: Sequence[int], allocs: Sequence[int], born_before: Sequence[bool], roles: Roles
) -> list[Category]:
    """Return the category of each storage.

    `blocks` are the engine's numbers of the storages, `allocs` the ops that allocated them.
    """
    named = [_named(block, roles) for block in blocks]
    learned = _depends_on_parameters(ops, named)
    visible = {storage for op in ops for storage in (*op.reads, *op.writes)}
    return [
        category
        or (_older(index in learned, roles) if born_before[index] else None)
        or _by_use(ops[allocs[index]].phase, index in learned, index in visible)
        for index, category in enumerate(named)
    ]


def _named(block: int, roles: Roles) -> Category | None:
    if block in roles.parameters:
        return Category.PARAMETER
    if block in roles.gradients:
        return Category.GRADIENT
    return Category.OPTIMIZER_STATE if block in roles.optimizer_states else None


def _depends_on_parameters(ops: Sequence[Op], named: Sequence[Category | None]) -> set[int]:
    """Return the storages computed from a parameter, in op order (what was written from one depends on it)."""
    learned = {storage for storage, category in enumerate(named) if category is Category.PARAMETER}
    for op in ops:
        if not learned.isdisjoint(op.reads):
            learned.update(op.writes)
    return learned


def _older(learned: bool, roles: Roles) -> Category:
    """Buffers and averaged weights, which training changes without an optimizer, are the model's."""
    if not learned:
        return Category.INPUT
    return Category.ACTIVATION if roles.are_of_modules else Category.PARAMETER


def _by_use(phase: Phase, learned: bool, visible: bool) -> Category:
    if not visible or phase is Phase.OPTIMIZER:
        return Category.SCRATCH
    if phase is Phase.BACKWARD:
        return Category.GRADIENT
    return Category.ACTIVATION if learned else Category.INPUT

"""What the linear program is built from, and the columns of one gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memfit.arrays import Float64Array, Int64Array
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.joint.solver import Term
from memfit.planning.joint.stretches import Idle

Terms = list[Term]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the program is built from.

    `again_us` are of the ops when they run again. When nothing is away, `load_bytes` are those of each op,
    `begin_bytes` those right before it begins. `hidden` are ops that may run again for storages without
    a gap in it, with the first and the last op before which they may.
    """

    trace: Trace
    machine: Machine
    duration_us: Float64Array
    again_us: Float64Array
    load_bytes: Int64Array
    begin_bytes: Int64Array
    idle: list[Idle]
    budget_bytes: int
    may_swap: bool
    clean_copies: bool
    segments: int
    hidden: Sequence[tuple[int, int, int]]


@dataclass(slots=True)
class Columns:
    """The columns of one gap, by the number of the cut: its returns by a copy and by remaking, and copies out.

    What does not return at a cut is away beyond it, and returns later in the one way or the other: that is told apart,
    since only what returns by a copy is copied out. A copy out has the number of the cut that ends its stretch.
    """

    swap: dict[int, int] = field(default_factory=dict)
    remake: dict[int, int] = field(default_factory=dict)
    beyond_swap: dict[int, int] = field(default_factory=dict)
    beyond_remake: dict[int, int] = field(default_factory=dict)
    copy_out: dict[int, int] = field(default_factory=dict)

    def all(self) -> set[int]:
        """Return the columns of what is away, in any way, or returns."""
        kinds = (self.swap, self.remake, self.beyond_swap, self.beyond_remake)
        return {column for kind in kinds for column in kind.values()}

    def in_tier(self, cut: int) -> Terms:
        """Return the terms of the part that is in the tier in the stretch up to `cut`."""
        return terms_of(cut, self.swap, self.beyond_swap)

    def dropped(self, cut: int) -> Terms:
        """Return the terms of the part that is nowhere in the stretch up to `cut`."""
        return terms_of(cut, self.remake, self.beyond_remake)

    def away(self, cut: int) -> Terms:
        """Return the terms of the part that is away in the stretch up to `cut`."""
        return self.in_tier(cut) + self.dropped(cut)

    def stays_away(self, cut: int) -> Terms:
        """Return the terms of the part that does not return at `cut`."""
        return terms_of(cut, self.beyond_swap, self.beyond_remake)


def terms_of(cut: int, *kinds: dict[int, int]) -> Terms:
    """Return the columns that each of `kinds` has for a cut, each counted once."""
    return [(columns[cut], 1.0) for columns in kinds if cut in columns]


def minus(terms: Terms) -> Terms:
    """Return `terms` with the other sign."""
    return [(column, -factor) for column, factor in terms]

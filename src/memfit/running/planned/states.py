"""The states of planned mode, and what is known of a kind of iteration and of an iteration's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memfit.running.planned.drift import Drift
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.making import Made, Making
from memfit.running.planned.recorded import CompressedIterations


@dataclass
class Known:
    """The knowledge of one iteration signature."""

    iterations: CompressedIterations
    plan: CompressedPlan | None = None
    making: Making | None = None
    corrections: int = 0  # of the link's speed
    refused: int = 0  # times that the engine had no room for it
    attempts: int = 0  # to plan it that came to nothing
    never: dict[int, str] = field(default_factory=dict)  # storages that cannot be made again, and why
    key: str = ""  # that its plan is kept by on disk
    is_kept: bool = False  # the plan was kept there by an earlier run

    def take(self, made: Made) -> None:
        """Take the plan that was made, if there is one."""
        if made.plan is not None:
            self.plan, self.key, self.is_kept = made.plan, made.key, made.is_kept
            self.never |= made.never

    @property
    def record_bytes(self) -> int:
        """The size of the record."""
        return self.iterations.compressed.size_bytes + (self.plan.compressed.size_bytes if self.plan else 0)


@dataclass(frozen=True)
class Watching:
    """Nothing is under way until an iteration repeats, or comes back."""


@dataclass
class Recording:
    """Iterations are recorded for a plan; `left` of them are yet to end."""

    left: int


@dataclass
class InForce:
    """A plan is in force."""

    drift: Drift = field(default_factory=Drift)


@dataclass(frozen=True)
class Closed:
    """The session is over."""


@dataclass(frozen=True)
class End:
    """An iteration's end."""

    signatures: Sequence[int]
    stats: dict[str, int]
    before: dict[str, int]  # the stats at the end of the iteration before
    at_boundary: bool  # nothing has been allocated since

    def grew(self, name: str) -> int:
        """Return by how much a figure grew in the iteration."""
        return self.stats[name] - self.before[name]

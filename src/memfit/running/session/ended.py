"""A session when it is over: figures and finished values, and nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memfit.ir import Timeline, Trace
from memfit.planning.lifetimes import peak_live
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.given import GivenPlan
from memfit.running.session.stats import Stats
from memfit.tracing.build import Roles
from memfit.tracing.compressed import CompressedIteration


class FirstIteration:
    """The first whole iteration of a session, once it has ended."""

    def __init__(self) -> None:
        self._compressed: CompressedIteration | None = None
        self._trace: Trace | None = None
        self._peak_bytes: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has ended."""
        return self._compressed is not None

    @property
    def record_bytes(self) -> int:
        """The size of the iteration as it is kept."""
        return 0 if self._compressed is None else self._compressed.compressed.size_bytes

    @property
    def roles(self) -> Roles:
        """What the optimizers named until then."""
        return Roles() if self._compressed is None else self._compressed.roles

    def keep(self, compressed: CompressedIteration) -> None:
        """Take the iteration, which has ended."""
        self._compressed = compressed

    def trace(self) -> Trace | None:
        """Return it as a trace, which is kept until `drop_trace`; None while it has not ended."""
        if self._trace is None:
            self._trace = self.new_trace()
        return self._trace

    def new_trace(self) -> Trace | None:
        """Return it as a new trace."""
        return None if self._compressed is None else self._compressed.trace()

    def drop_trace(self) -> None:
        """Let go of the trace: it is large, and can be made again."""
        self._trace = None

    def peak_bytes(self) -> int | None:
        """Return the peak that shares are of, or None while the iteration has not ended."""
        if self._peak_bytes is None and (trace := self.trace()) is not None:
            self.note_peak_of(trace)
        return self._peak_bytes

    def note_peak_of(self, trace: Trace) -> int:
        """Return the peak that shares are of; `trace` is this iteration's."""
        self._peak_bytes = peak_live(trace, aligned=True)[0]
        return self._peak_bytes


@dataclass(frozen=True)
class Ended:
    """The finished figures of a session that has ended."""

    stats: Stats
    signatures: list[str]
    signature_counts: Mapping[str, int]
    first: FirstIteration
    began: float | None
    why_no_limit: str
    planned_iterations: int
    compressed_plan: CompressedPlan | None
    measured: Timeline | None
    ran: tuple[CompressedPlan | None, Timeline | None]
    given_plan: GivenPlan
    plan_searches: int
    kept_plans: int
    shared_plans: int
    not_made_again: tuple[str, ...]
    unplanned: tuple[str, ...]
    forward_only: bool

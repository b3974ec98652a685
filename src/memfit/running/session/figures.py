"""A session's figures: all that it can be asked for, while it runs and when it has ended."""

from __future__ import annotations

from collections.abc import Mapping

from memfit.errors import UsageError
from memfit.ir import Timeline, Trace
from memfit.running.engine.tiers import TierSpec
from memfit.running.planned.engine_plan import CompressedPlan, EnginePlan
from memfit.running.planned.given import GivenPlan
from memfit.running.planned.ran import Ran, what_ran
from memfit.running.session.active import Running
from memfit.running.session.ended import Ended
from memfit.running.session.iterations import WHOLE
from memfit.running.session.settings import Settings
from memfit.running.session.stats import Stats


class Figures:
    """What a session knows of itself; `Session` begins and ends it."""

    _settings: Settings
    _state: Running | Ended | None

    @property
    def _known(self) -> Running | Ended:
        if self._state is None:
            raise UsageError(
                "this session has not begun",
                why="it begins with its `with` block and has no figures before",
                remedy="with memfit.session(...) as session: ...",
            )
        return self._state

    @property
    def _running(self) -> Running:
        state = self._known
        if isinstance(state, Ended):
            raise UsageError(
                "this session has ended",
                why="all storages are back in ordinary memory and no longer belong to the session",
                remedy="do it inside the `with` block",
            )
        return state

    @property
    def stats(self) -> Stats:
        """The session's counts and sizes so far, or at its end."""
        return self._known.stats

    @property
    def signatures(self) -> list[str]:
        """The last 1,024 iterations, one text each; equal texts mean the same ops on storages of the same sizes."""
        return self._known.signatures

    @property
    def signature_counts(self) -> Mapping[str, int]:
        """The number of iterations of each signature; kinds after the first 4,096 are not counted."""
        return self._known.signature_counts

    @property
    def recorded(self) -> Trace | None:
        """The first whole iteration, or None while none has ended. It is made when asked for, which takes a moment."""
        return self._known.first.trace()

    @property
    def trace(self) -> Trace:
        """The first whole iteration, built when it is asked for, which takes a moment.

        Raises:
            UsageError: No whole iteration has ended yet.
        """
        trace = self.recorded
        if trace is None:
            raise UsageError(
                "no whole iteration has been recorded",
                why=f"an iteration is whole {WHOLE}",
                remedy="run at least two steps inside the session",
            )
        return trace

    @property
    def forward_only(self) -> bool:
        """Whether iterations end with forward passes without gradients, as in a loop that does not train."""
        return self._known.forward_only

    @property
    def peak_bytes(self) -> int | None:
        """The peak that shares are of, or None while no whole iteration has ended."""
        return self._known.first.peak_bytes()

    @property
    def began(self) -> float | None:
        """The time at which its block began, by `time.monotonic`; None before that."""
        return None if self._state is None else self._state.began

    @property
    def tier(self) -> TierSpec:
        """The tier of bytes that do not fit."""
        return self._settings.tier

    @property
    def why_no_limit(self) -> str:
        """The reason why a share of the peak is not yet a limit; empty if it is one, or if no share was asked for."""
        return self._known.why_no_limit

    @property
    def planned_iterations(self) -> int:
        """The number of iterations that ran wholly by a plan, from beginning to end."""
        return self._known.planned_iterations

    @property
    def plan_searches(self) -> int:
        """The number of times that memfit looked for what should leave, and how."""
        return self._known.plan_searches

    @property
    def kept_plans(self) -> int:
        """The number of times that a plan of an earlier run, kept on disk, came into force."""
        return self._known.kept_plans

    @property
    def shared_plans(self) -> int:
        """The number of times that a plan came into force that another rank of this run had found."""
        return self._known.shared_plans

    @property
    def not_made_again(self) -> tuple[str, ...]:
        """The storages that plans dropped and that could not be made again: the op that made each, and the reason."""
        return self._known.not_made_again

    @property
    def unplanned(self) -> tuple[str, ...]:
        """The reasons why kinds of iterations run without a plan at present; each is tried again after a while."""
        return self._known.unplanned

    @property
    def planned(self) -> EnginePlan | None:
        """The plan in force, or the last one that was."""
        compressed = self.compressed_plan
        return None if compressed is None else compressed.plan()

    @property
    def compressed_plan(self) -> CompressedPlan | None:
        """The same as it is kept, with the iteration that it was made for."""
        return self._known.compressed_plan

    @property
    def measured(self) -> Timeline | None:
        """The timeline of the last whole iteration under `planned`, if the session `measures`."""
        return self._known.measured

    @property
    def given_plan(self) -> GivenPlan:
        """The fate of the plan that was passed."""
        return self._known.given_plan

    def what_ran(self) -> Ran | None:
        """Return the plan in force, or the last one that was, with its effect; None if no storage leaves by it.

        If no iteration under it was measured yet, it is the one before, of which one was.
        """
        planned, measured = self._known.ran
        if planned is None:
            return None
        return what_ran(planned, measured, self._known.first.roles, self._settings.script)

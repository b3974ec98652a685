"""Planned mode: once an iteration has repeated, the next ones run by a plan made for it.

Iterations are recorded, packed, and the table handed to the engine; what does not fit the budget is swapped by the
plan. An iteration that is not the planned one costs nothing but the table's use: each allocation is checked by its
size, each op by its name. Each kind of iterations has a plan of its own, and that of the kind which comes next, as far
as the last ones tell, is put in force; a plan that is wrong for its own kind several times in a row is made anew.
When ops wait for copies longer than foreseen, or copies take less time than foreseen, the link's speed is taken from
what was measured, and a plan is made with it while training goes on; when iterations take another time than foreseen,
so are the times of ops. A plan of an earlier run is used as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memfit.errors import MemfitError
from memfit.ir import Timeline
from memfit.messages import described, say
from memfit.planning.joint.program import Moves
from memfit.running import host
from memfit.running.engine.module import EngineModule
from memfit.running.planned.asking import Asking
from memfit.running.planned.chosen import kept_plan
from memfit.running.planned.drift import alike
from memfit.running.planned.engine_plan import CompressedPlan, EnginePlan
from memfit.running.planned.given import GivenPlan, Refused, Untried, Used
from memfit.running.planned.kinds import Kinds
from memfit.running.planned.making import Made
from memfit.running.planned.pauses import WITHOUT, Pauses
from memfit.running.planned.recorded import CompressedIterations
from memfit.running.planned.recorded_kinds import RecordedKinds
from memfit.running.planned.revisions import JOINT, Revisions
from memfit.running.planned.states import Closed, End, InForce, Known, Watching
from memfit.tracing.build import RawRecording

_STRIKES = 3
_ATTEMPTS = 3  # to plan an iteration, each for a part of the budget less than the one before
_FAILED = "the planner failed: {}"
_NOT_FOUND = "none was found that fits the budget"
_NO_ROOM = "the other live storages leave no room for it"
_ANOTHER = "several in a row allocated something else than the plan had foreseen, or needed its room"
_NEVER_ALIKE = "hardly two of them are alike"
_FIRST = "first"  # a stage to which every rank comes
_UNLIKE = 0  # stands for the kinds of iterations of which that is said
_TOO_SHORT = "the script ended before an iteration had repeated often enough to be planned: about six steps of one kind"


@dataclass
class Planner:
    """Watches iterations end, and switches the engine to a plan."""

    engine: EngineModule
    asking: Asking
    patience: float  # seconds that training waits for its first plan before it goes on without
    measures: bool = False  # note what iterations under a plan did
    given_plan: GivenPlan = field(default_factory=Untried)
    known: dict[int, Known] = field(default_factory=dict)
    """By signature."""
    pauses: Pauses = field(default_factory=Pauses)
    """The kinds of iterations for which no plan is looked for at present."""
    followed: int = 0
    """Iterations that a plan was in force for throughout, and right."""
    searches: int = 0
    """Times that it was looked for what should leave, and how."""
    kept_plans: int = 0
    """Times that a plan of an earlier run came into force."""
    shared_plans: int = 0
    """Times that a plan came into force that another rank of this run had found."""
    failures: int = 0
    """Errors of the planner's own."""
    _state: Watching | InForce | Closed = field(default_factory=Watching)
    _recording: RecordedKinds | None = None  # while iterations are recorded
    _kinds: Kinds = field(default_factory=Kinds)
    _signature: int = 0  # of the last plan in force
    _before: dict[str, int] = field(default_factory=dict)  # the engine's stats when the last iteration ended

    def __post_init__(self) -> None:
        self._revisions = Revisions(self.engine, self.asking, self.measures)

    @property
    def not_made_again(self) -> list[str]:
        """The storages that could not be, with the op that made each, its line, and the reason."""
        return self._revisions.not_made_again

    @property
    def record_bytes(self) -> int:
        """The size of the records of iterations and of their plans."""
        return sum(known.record_bytes for known in list(self.known.values()))

    @property
    def plan(self) -> CompressedPlan | None:
        """The plan in force, or the last one that was; None if no plan ever was."""
        known = self.known.get(self._signature)
        return known.plan if known else None

    @property
    def measured(self) -> Timeline | None:
        """The last iteration under `plan` that was noted; None if none was."""
        known = self.known.get(self._signature)
        return known.measured if known else None

    @property
    def ran(self) -> tuple[CompressedPlan | None, Timeline | None]:
        """`plan` and `measured`; if nothing was noted of it yet, the plan before it of which something was."""
        known = self.known.get(self._signature)
        return known.ran if known else (None, None)

    @property
    def in_force(self) -> bool:
        """Whether a plan is in force."""
        return isinstance(self._state, InForce)

    @property
    def is_looking(self) -> bool:
        """Whether iterations are recorded, or a plan is made."""
        return self._recording is not None or any(known.is_planned_for for known in list(self.known.values()))

    def close(self) -> None:
        """End what is under way: the session is over."""
        self._state = Closed()
        for known in list(self.known.values()):
            if known.making is not None:
                made = known.making.cancel()
                self._hear(made)
                if made.failed:
                    self._pause(known, made.failed)
        if self.asking.cache is not None:
            self.asking.cache.close()
        if self.asking.given is not None and isinstance(self.given_plan, Untried):
            self._refuse_given(Refused(_TOO_SHORT))

    def take_over_recording(self) -> None:
        """Plan by the recording that is under way, if what it has recorded comes again."""
        self._recording = RecordedKinds()

    def iteration_ended(self, at_boundary: bool = True) -> None:
        """Take the next step towards a plan. `at_boundary`: nothing has been allocated since the iteration ended.

        An error of the planner's own is none of the training's: that goes on without a plan.
        """
        if isinstance(self._state, Closed):
            return
        try:
            self._step(at_boundary)
        except MemfitError:  # it is for the user: a tier that fails
            raise
        except Exception as error:
            self._start_over(described(error))

    def _step(self, at_boundary: bool) -> None:
        state = self._state
        signatures, stats = self.engine.signatures(), self.engine.stats()
        end = End(signatures, stats, self._before or stats, at_boundary)
        self._before = stats
        self.asking.note(stats)
        followed = isinstance(state, InForce) and self.engine.has_plan() and not end.is_wrong
        self._kinds.note(state.signature if isinstance(state, InForce) and followed else signatures[-1])
        if self._recording is not None:
            self._record(self._recording, end)
        match state:
            case InForce() if self.engine.has_plan():
                self._watch(state, end, followed)
            case InForce():
                self._lost(state, end)
        self._look_ahead(end)

    def _start_over(self, failed: str) -> None:
        """Forget all that is known of iterations, and begin anew after a while."""
        self.failures += 1
        if self._recording is not None:
            self._recording = None
            self.engine.stop_recording()
        if self.engine.has_plan():
            self.engine.drop_plan()
        for known in list(self.known.values()):
            if known.making is not None:
                self._hear(known.making.cancel())
        self.known.clear()
        self._become(Watching())
        self.pauses.begin(_UNLIKE, _FAILED.format(failed), self.engine.stats()["iterations"])

    def _become(self, state: Watching | InForce) -> None:
        """Enter a state, unless the session has ended meanwhile, in another thread."""
        self._revisions.end()
        if not isinstance(self._state, Closed):
            self._state = state

    def _look_ahead(self, end: End) -> None:
        """Put the plan of the kind in force that comes next; record it if it recurs and has none."""
        expected = self._kinds.expected()
        next_kind = self.known.get(expected, None if self.in_force else self.known.get(self._kinds.history[-1]))
        if next_kind is not None and not self._is_in_force(next_kind):
            self._use_when_made(next_kind, end)
        if expected not in self.known and self._kinds.recurs(expected) and self._may_record(expected, end):
            self._recording = RecordedKinds(expected, self._kinds.repeats(expected))
            self.engine.start_recording(end.at_boundary)

    def _may_record(self, kind: int, end: End) -> bool:
        now = end.stats["iterations"]
        is_free = self._recording is None and not isinstance(self._state, Closed)
        return is_free and not (self.pauses.lasts(kind, now) or self.pauses.lasts(_UNLIKE, now))

    def _is_in_force(self, known: Known) -> bool:
        return isinstance(self._state, InForce) and self._state.signature == known.signature

    def _record(self, recording: RecordedKinds, end: End) -> None:
        recording.note(end.signatures, self.engine.iteration_marks(), self.engine.tick_marks())
        if not recording.wanted and self._kinds.recurs(expected := self._kinds.expected()):
            recording.wanted, recording.repeats = expected, self._kinds.repeats(expected)
        if not recording.is_enough:
            return
        self._recording = None
        raw = RawRecording.of(self.engine.stop_recording())
        if kind := recording.found(self.known):
            self._plan_for(kind, recording.iterations(kind, raw, self.engine.alignment()))
        elif recording.wanted:
            kind = recording.wanted if self.known else _UNLIKE
            has_others = bool(set(recording.in_order) - self.known.keys())
            self.pauses.begin(kind, _NEVER_ALIKE, end.stats["iterations"], is_felt=has_others)

    def _plan_for(self, signature: int, iterations: CompressedIterations) -> None:
        self.known[signature] = known = Known(signature, iterations)
        self._begin(known)

    def _begin(self, known: Known) -> None:
        """Have a plan made, and let training wait for the first one.

        For a plan that was passed it waits until that is judged: whoever passes one counts on running by it.
        """
        if known.plan is not None:
            known.making = self.asking.make(known)
            return
        known.making = self.asking.make(known, stage=_FIRST)
        known.making.wait(self.patience if self.asking.given_for(known) is None else None)

    def _hear(self, made: Made) -> None:
        self.searches += made.searched
        self.failures += bool(made.failed)
        if made.refused is not None:
            self._refuse_given(made.refused)

    def _refuse_given(self, refused: Refused) -> None:
        """Say once that the given plan is not used: otherwise nobody would know."""
        if not isinstance(self.given_plan, Untried):
            return
        self.given_plan = refused
        remedy = "the session plans by itself; for another plan: memfit trace, then memfit plan --addresses"
        say(f"memfit: warning: the given plan is not used: {refused.sentence}; {remedy}")

    def _use_when_made(self, known: Known, end: End) -> None:
        """Put the plan of a kind in force: that which was made, or until there is one the one before it."""
        made = Made()
        if known.making is not None and known.making.done():
            made, known.making = known.making.result(), None
            self._hear(made)
            if made.refused is not None:
                known.refuses_given = True
                self._begin(known)
                self._use_when_made(known, end)
                return
            if made.failed:
                self._has_failed(known, made.failed)
                return
            known.plan = made.anew or known.plan
            if self._is_in_force(known) and (made.plan is None or not made.plan.improves(known.plan, known.never)):
                self._confirm(known, made)
                return
            known.take(made)
        elif known.making is not None and (not self._may_have_room(known) or self._is_in_force(known)):
            return
        self._switch_to(known, made, end)

    def _has_failed(self, known: Known, failed: str) -> None:
        """Go on without a plan, or with the one in force, and try again after a while."""
        if self.asking.cache is not None:
            self.asking.cache.settled_all()
        if known.plan is None:
            self.known.pop(known.signature, None)
        known.has_failed = True
        self._pause(known, failed)

    def _pause(self, known: Known, failed: str) -> None:
        what = WITHOUT if known.plan is None else "no other plan was made"
        self.pauses.begin(known.signature, _FAILED.format(failed), self._before["iterations"], what=what)

    def _try_again(self, known: Known, end: End) -> None:
        """Ask for the plan again that the planner failed to make, if it is time."""
        if not self.pauses.lasts(known.signature, end.stats["iterations"]):
            known.has_failed = False
            known.making = self.asking.make(known, stage=JOINT if self.asking.moves is Moves.JOINT else "")

    @staticmethod
    def _may_have_room(known: Known) -> bool:
        return known.plan is not None and known.refused < _STRIKES

    def _switch_to(self, known: Known, made: Made, end: End) -> None:
        """Put the plan of a kind in force; `made` is what has just come of making one."""
        is_another = known.signature != self._kinds.history[-1]
        plan = known.plan
        if plan is None:
            self._plan_again(known, _NOT_FOUND)
        elif self._put_in_force(plan.plan(), known.signature, end.at_boundary, is_another):
            self._is_used(known, plan, made)
        else:
            self._become(Watching())
            self._was_refused(known, plan)

    def _is_used(self, known: Known, plan: CompressedPlan, made: Made) -> None:
        """Note that a plan is in force, and have a better one made where there may be one."""
        self._signature = known.signature
        self._become(InForce(known.signature))
        self._revisions.begin(known)
        self.pauses.end(known.signature)
        self.pauses.end(_UNLIKE)
        self.given_plan = Used() if plan.is_given else self.given_plan
        if made.plan is not None:
            self.kept_plans += made.is_kept and not made.is_shared
            self.shared_plans += made.is_shared
            self._keep(known)
        if known.is_planned_for:
            return
        # The link of another rank of this machine is this one's: what differs is how busy it was.
        is_for_another_link = made.is_kept and not made.is_shared and not alike(self.asking.machine(), plan.machine)
        if is_for_another_link:
            known.making = self.asking.make(known)
        elif self.asking.moves is Moves.JOINT and plan.may_be_improved:
            self._revisions.improve(known)

    def _was_refused(self, known: Known, plan: CompressedPlan) -> None:
        """Note that there was no room for a plan; after some times it is made for less, unless one is being made."""
        known.refused += 1
        if known.making is not None or self._may_have_room(known):
            return
        if plan.is_given:
            self._refuse_given(Refused(_NO_ROOM))
            known.refuses_given = True
        self._plan_again(known, _NO_ROOM)

    def _confirm(self, known: Known, made: Made) -> None:
        """Note that no better plan than the one in force was found, with what is known now."""
        known.is_kept = False  # as it is foreseen now
        if known.plan is not None and made.plan is not None and made.plan.is_joint:
            known.plan = replace(known.plan, is_joint=True)
        known.claim = made.claim
        self._keep(known)

    def _keep(self, known: Known) -> None:
        """Let the next run have the plan, unless it is from there, was passed, or nothing leaves by it."""
        cache, plan, key, never, claim = self.asking.cache, known.plan, known.key, dict(known.never), known.claim
        if cache is None:
            return
        if plan is None or not key or plan.is_given or plan.machine is None or known.is_kept:
            cache.settled(claim)
        else:
            cache.keep(key, lambda: kept_plan(plan, key, never), claim)

    def _plan_again(self, known: Known, why: str) -> None:
        """Plan once more, for less of the budget, and around what cannot move: these took what the plan needed."""
        known.attempts += 1
        known.refused = 0
        self.asking.unfit.add(known.key)
        if self.asking.cache is not None:
            self.asking.cache.settled(known.claim)
        known.plan = None
        if known.attempts >= _ATTEMPTS:
            del self.known[known.signature]
            self.pauses.begin(known.signature, why, self._before["iterations"])
        else:
            known.making = self.asking.make(known, stage=f"{_FIRST}, attempt {known.attempts}")

    def _put_in_force(self, plan: EnginePlan, kind: int, at_boundary: bool, is_another: bool) -> bool:
        table = plan.addresses
        used = self.engine.use_plan(table.columns, table.zone_bytes, table.iterations, plan.swaps, plan.remakes,
                                    plan.resident, at_boundary, is_another, table.zone_offset, kind)  # fmt: skip
        host.give_back_freed()  # recording, planning and restoring took many times what is kept
        return used

    def _watch(self, state: InForce, end: End, followed: bool) -> None:
        """The plan was in force throughout the iteration: was it right?"""
        known = self.known.get(state.signature)
        struck_out = self._strike(state, end, followed)
        self.followed += followed
        missed = end.grew("plan_mismatches") > 0 or end.grew("derailments") > 0
        if missed or known is None or known.making is not None:
            state.pace.skip()
        noted = None if missed or known is None else self._revisions.noted(known)
        if struck_out:
            self._forget(state, end)
        elif known is not None and known.making is not None:
            self._use_when_made(known, end)
        elif known is not None and not self._revisions.hear_of_drops(known):
            if not missed and known.has_failed:
                self._try_again(known, end)
            elif not missed or known.timing is not None:
                self._revisions.compare(state, known, end, noted)

    def _lost(self, state: InForce, end: End) -> None:
        """The engine has given the plan up for want of room; it is taken up again when its turn comes."""
        self._become(Watching())
        known = self.known.get(state.signature)
        if self._strike(state, end, followed=False):
            self._forget(state, end)
        elif known is not None and known.making is None:
            known.timing = None
            self._revisions.hear_of_drops(known)  # what was not dropped may be why there was no room

    def _strike(self, state: InForce, end: End, followed: bool) -> bool:
        """Note whether an iteration was as planned; return whether too many of those that the plan is for were not.

        One of another kind that has a plan of its own says nothing of this one.
        """
        known = self.known.get(state.signature)
        if known is None:
            return not followed
        if end.signatures[-1] == state.signature or end.signatures[-1] not in self.known:
            known.strikes = 0 if followed else known.strikes + 1
        return known.strikes >= _STRIKES

    def _forget(self, state: InForce, end: End) -> None:
        """Go on without the plan; if it was wrong for its own kind, without what led to it, too."""
        self._become(Watching())
        self.engine.drop_plan()
        known = self.known.get(state.signature)
        if known is not None:
            known.strikes = 0
        if known is not None and end.signatures[-1] == state.signature:
            del self.known[state.signature]
            self.asking.unfit.add(known.key)
            self.pauses.begin(state.signature, _ANOTHER, end.stats["iterations"], at_once=True)

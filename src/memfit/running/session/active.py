"""A session between its beginning and its end: the engine's work, and all that watches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from memfit import ranks
from memfit.errors import MemfitError, UsageError
from memfit.ir import Timeline, Trace
from memfit.planning.joint.program import Moves
from memfit.running import host
from memfit.running.doors import guards, partitioning
from memfit.running.doors.uncompiled import uncompiled
from memfit.running.engine import EngineModule, devices
from memfit.running.engine.disturbed import disturbance_of
from memfit.running.planned.asking import Asking
from memfit.running.planned.engine_plan import CompressedPlan
from memfit.running.planned.given import GivenPlan
from memfit.running.planned.link import SessionLink
from memfit.running.planned.planner import Planner
from memfit.running.session import chunking
from memfit.running.session.ended import Ended, FirstIteration
from memfit.running.session.iterations import Iterations
from memfit.running.session.modules import Modules
from memfit.running.session.settings import Settings, Splitting
from memfit.running.session.share import Share
from memfit.running.session.stats import Stats
from memfit.running.session.stats_log import StatsLog
from memfit.running.session.status import Status, plan_state
from memfit.tracing.build import RawRecording
from memfit.tracing.compressed import CompressedIteration
from memfit.tracing.ghosts import only_ghosts, with_real
from memfit.units import format_bytes

_COPY_BYTES = 64 << 20  # a copy whose speed is the link's


class Running:
    """A session that runs. What the engine calls back belongs to this, never to the Session: that may go at any time
    after its end.
    """

    def __init__(self, engine: EngineModule, settings: Settings) -> None:
        self.engine = engine
        self.began: float | None = None
        self.first = FirstIteration()
        self.iterations = Iterations(engine, self._iteration_ended, self._log_stats)
        self.modules = Modules(engine.recorded_ticks)
        link = SessionLink(settings.tier, settings.measured_machine(), ranks.local_world_size())
        asking = Asking(engine, link, settings.given, settings.moves, settings.plan_cache())
        self.planner = Planner(engine, asking, settings.patience, settings.measures)
        self._settings = settings
        self._speeds = settings.speeds()
        self._kept = settings.kept_answers()
        self._share = Share(engine, settings, self.adopt_visible)
        self.stats_logs: list[StatsLog] = []
        self._untold_peak_bytes = 0  # of the first iteration
        self._told_of_plan = False
        self._contexts = ExitStack()

    def begin(self) -> None:
        """Let the engine govern from now on."""
        settings = self._settings
        self._contexts.enter_context(devices.entered(settings.device))
        self.engine.start(
            str(settings.device), settings.fixed_bytes or 0, host.unlimited_arena_bytes(settings.device.type),
            settings.grow, settings.tier.recipe(), disturbance_of(settings.tier),
            threading.active_count() > 1,
        )  # fmt: skip
        self.engine.set_mapping(settings.mapping)
        self.engine.warm_up()
        for kept in self._kept:
            kept.tell(self.engine)
        self._allow_splits()
        self._allow_drops()
        self._enter_contexts()
        self.adopt_visible()
        self.began = time.monotonic()
        if settings.announce is not None and (others := devices.about_others(settings.device)):
            settings.announce(others)

    def _allow_splits(self) -> None:
        settings = self._settings
        if settings.splitting is Splitting.NEVER:
            return
        is_planned_for = settings.plans and settings.budget is not None
        self.engine.allow_splits(True, settings.splitting is Splitting.TRY, False, is_planned_for)

    def _allow_drops(self) -> None:
        if self._settings.budget is not None and self._settings.moves is Moves.JOINT:
            machine = self.planner.asking.machine()
            self.engine.allow_drops(machine.out.gb_per_s(_COPY_BYTES), machine.into.gb_per_s(_COPY_BYTES))

    def _enter_contexts(self) -> None:
        settings = self._settings
        self._contexts.enter_context(guards.installed(self.engine))
        chunk_bytes = devices.chunk_bytes(settings.device, settings.fixed_bytes)
        if self._speeds is not None:
            self._contexts.enter_context(partitioning.recomputed(self._speeds))
        self._contexts.enter_context(chunking.installed(self.engine, chunk_bytes))
        self._contexts.enter_context(self.iterations.watched())
        if settings.accelerator is not None:
            self.engine.watch_meta()
        if settings.accelerator is not None or settings.notes_shapes:
            self.engine.note_shapes()
        if settings.record:
            self.engine.on_period(uncompiled(self._period_found))  # it is called in the midst of an op
            self.engine.start_recording()
        if settings.on_trace is not None:
            self._contexts.enter_context(self.modules.watched())

    def close(self) -> Ended:
        """Make no more plans; return the session's finished figures."""
        if not self.engine.is_inert():
            self.planner.close()
            for kept in self._kept:
                kept.keep(self.engine)
        return Ended(
            self.stats, self.signatures, self.signature_counts, self.first, self.began, self.why_no_limit,
            self.planned_iterations, self.compressed_plan, self.measured, self.ran, self.given_plan, self.plan_searches,
            self.kept_plans, self.shared_plans, self.not_made_again, self.unplanned, self.forward_only,
        )  # fmt: skip

    def stop(self) -> list[str]:
        """Give every storage ordinary memory again, as far as this has begun; return the failures."""
        self.iterations.forget()
        with self._contexts:
            devices.free_workspaces(self._settings.device)
            report = self.engine.stop()
        return list(report["lost"])

    @property
    def stats(self) -> Stats:
        """The figures of the session so far."""
        stats = self.engine.stats()
        kept = self.first.record_bytes + self.planner.record_bytes
        own = {
            "iterations": stats["iterations"] - self.iterations.surplus,
            "record_bytes": stats["record_bytes"] + kept,
            "planner_failures": self.planner.failures,
        }
        return Stats(**stats | own)

    def status(self) -> Status:
        """Return how the session stands; any thread may ask."""
        seconds = time.monotonic() - (self.began or time.monotonic())
        plan = plan_state(self.planner) if self._settings.plans else "no plans"
        return Status(seconds, self.stats, plan, self.planned_iterations)

    @property
    def signatures(self) -> list[str]:
        """One text for each of the last 1,024 iterations."""
        return [_text(signature) for signature in self.engine.signatures()]

    @property
    def signature_counts(self) -> Mapping[str, int]:
        """The number of iterations of each signature."""
        return {_text(signature): count for signature, count in self.engine.signature_counts().items()}

    @property
    def why_no_limit(self) -> str:
        """The reason why a share of the peak is not yet a limit; empty if it is one, or if no share was asked for."""
        if not self._share.pending:
            return ""
        return "it could not be met" if self.first.is_whole else self.iterations.why_none_was_whole()

    @property
    def planned_iterations(self) -> int:
        """The number of iterations that ran wholly by a plan, from beginning to end."""
        return self.planner.followed

    @property
    def plan_searches(self) -> int:
        """The number of times that it was looked for what should leave, and how."""
        return self.planner.searches

    @property
    def kept_plans(self) -> int:
        """The number of times that a plan of an earlier run came into force."""
        return self.planner.kept_plans

    @property
    def shared_plans(self) -> int:
        """The number of times that a plan came into force that another rank of this run had found."""
        return self.planner.shared_plans

    @property
    def not_made_again(self) -> tuple[str, ...]:
        """The storages that plans dropped and that could not be made again, with the reasons."""
        return tuple(self.planner.not_made_again)

    @property
    def unplanned(self) -> tuple[str, ...]:
        """Why the kinds of iterations that run without a plan at present do."""
        return self.planner.pauses.reasons

    @property
    def forward_only(self) -> bool:
        """Whether iterations end with forward passes without gradients."""
        return self.iterations.are_passes

    @property
    def compressed_plan(self) -> CompressedPlan | None:
        """The plan in force, or the last one that was, as it is kept."""
        return self.planner.plan

    @property
    def measured(self) -> Timeline | None:
        """The timeline of the last whole iteration under the plan, if the session measures."""
        return self.planner.measured

    @property
    def ran(self) -> tuple[CompressedPlan | None, Timeline | None]:
        """The plan that the last measured iteration ran by, and that; the compressed plan alone if none was."""
        return self.planner.ran

    @property
    def given_plan(self) -> GivenPlan:
        """The fate of the plan that was passed."""
        return self.planner.given_plan

    def record_span(self, span: Callable[[], object]) -> Trace:
        """Run `span` and return the trace of everything in it, as one iteration."""
        self.engine.boundary()
        self.engine.start_recording()
        try:
            with self.iterations.one(), self.modules.watched():
                span()
        finally:
            recording = self._recorded()
        self.engine.boundary()
        count = len(recording.ops)
        if count == 0:
            raise UsageError("nothing was recorded", why="no op ran", remedy="pass a function that runs one iteration")
        return self._compressed(recording, 0, count).trace()

    def adopt_visible(self) -> None:
        """Show the engine every tensor Python can see: those made before the session move into the budget."""
        self.engine.adopt_visible()
        self.engine.release_cached()

    def _iteration_ended(self, at_boundary: bool = True) -> None:
        """Close the recording at the end of the first whole iteration and let a relative budget take effect."""
        if not self._settings.record:
            return
        self.first.drop_trace()
        if not self.first.is_whole and not self._keep_first():
            return
        # Again at each iteration's end while it fails: a script that catches the error is not without a limit.
        if self._share.pending:
            self._share.apply(self.first, self.iterations.are_passes)
        elif not self.iterations.are_passes:
            self._share.tell_of_training()
        if self._settings.plans:
            self._tell_of_search()
            self.planner.iteration_ended(at_boundary)
            self._tell_of_plan()

    def _log_stats(self) -> None:
        for log in self.stats_logs:
            log.iteration_ended(self.status)

    def _keep_first(self) -> bool:
        """Close the recording if it has a whole iteration; return whether it has."""
        marks = self.engine.iteration_marks()[-2:]
        # Two steps with no op between them are not the iteration to learn from.
        if len(marks) < 2 or marks[0] == marks[1]:
            return False
        self.iterations.watch_roles = False
        self._untold_peak_bytes = self.engine.stats()["peak_live_bytes"]
        # Where nothing has left yet, a tier that compresses has not shown how small copies become.
        goes_on = self._settings.plans and not self._settings.tier.compress
        self.first.keep(self._compressed(self._recorded(goes_on=goes_on), *marks))
        if goes_on:
            self.planner.take_over_recording()
        host.give_back_freed()
        if self._settings.on_trace is not None:
            self._settings.on_trace()
        return True

    def _tell_of_search(self) -> None:
        """Announce once that iterations are slow until there is a plan for them."""
        peak_bytes, self._untold_peak_bytes = self._untold_peak_bytes, 0
        announce, patience_s = self._settings.announce, self._settings.patience
        if announce is None or not peak_bytes or not 0 < self.engine.stats()["budget_bytes"] < peak_bytes:
            return
        announce(
            f"the peak of live tensors is {format_bytes(peak_bytes)}: storages are evicted on demand, which is slow, "
            "until two iterations in a row are alike and a plan is in force"
            + (f" (training waits for it, {patience_s:g} s at most)" if patience_s else "")
        )

    def _tell_of_plan(self) -> None:
        """Announce the first plan that is in force."""
        plan, announce = self.planner.plan, self._settings.announce
        if announce is None or self._told_of_plan or plan is None or not self.planner.in_force:
            return
        self._told_of_plan = True
        earlier = ", as an earlier run has planned it" if self.planner.kept_plans else ""
        parts = [plan.plan().describe()]
        if plan.compute_us is not None:
            parts.append(f"a step is foreseen at {1 + plan.overhead:.2f}x of its ops' time")
        if self.planner.is_looking:
            parts.append("a better plan is looked for beside training")
        announce(f"a plan is in force for iterations like this one{earlier}: {'; '.join(parts)}")

    def _recorded(self, *, goes_on: bool = False) -> RawRecording:
        calls = self.modules.calls()
        recording = RawRecording.of(self.engine.recording_so_far() if goes_on else self.engine.stop_recording())
        return recording.with_modules(calls) if calls else recording

    def _compressed(self, recording: RawRecording, first: int, last: int) -> CompressedIteration:
        settings, roles = self._settings, self.iterations.roles
        if settings.accelerator is not None:
            twins = settings.twins
            recording = only_ghosts(recording) if twins is None else with_real(recording, twins, first)
            roles = roles if twins is None else twins.named(roles)
        about: dict[str, Any] = {
            "signature": self.signatures[-1],
            "torch_version": torch.__version__,
            "device": settings.device.type,
            "alignment": self.engine.alignment(),
            "script": settings.script,
            "iteration": self.engine.stats()["iterations"] - 1,
        }
        return CompressedIteration.of(recording, first, last, roles, settings.accelerator, **about)

    def _period_found(self) -> None:
        """Answer the engine at the end of some op: an error may only be left for the next allocation."""
        with self.iterations.turn() as mine:
            if not mine:
                return
            if not self.first.is_whole and self.engine.has_instance(torch.optim.Optimizer):
                # It has yet to step (gradients are being accumulated): its step is the iteration's end.
                self.engine.reject_period()
                return
            self.iterations.take_no_passes()
            try:
                self._iteration_ended(at_boundary=False)
                self._log_stats()
            except MemfitError as error:
                self.engine.fail_next(str(error), getattr(error, "required_bytes", None) or 0)


def _text(signature: int) -> str:
    return f"{signature:016x}"

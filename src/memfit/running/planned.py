"""Planned mode: once an iteration has repeated, the next ones run by a plan made for it.

Iterations are recorded, packed, and the table handed to the engine; what does not fit the budget is swapped by the
plan. An iteration that is not the planned one costs nothing but the table's use: each allocation is checked by its
size, each op by its name. After several such iterations in a row the plan is made anew; plans are kept by signature.
When ops wait for copies longer than foreseen, the link's speed is taken from what was measured, and a plan is made
with it while training goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from memfit.ir import Plan, Timeline
from memfit.machine import Machine
from memfit.messages import say
from memfit.running import host
from memfit.running.engine_plan import EnginePlan, PackedIterations, PackedPlan, given_engine_plan, make_engine_plan
from memfit.running.link import SessionLink
from memfit.running.timeline import measured_timeline
from memfit.tracing.build import RawRecording

_STRIKES = 3
_ITERATIONS = 3  # that are recorded; the recording may begin in the midst of the first
_PATIENCE = 2.0  # seconds that training waits for a plan before it goes on without
_STALL_SHARE = (
    0.005  # of an iteration, beyond what was foreseen, in a row of iterations: then the link is not as assumed
)
_STALLED = 3  # twice as many after each correction: a link that is never steady is not worth a plan all the time
_ALIKE = 0.1  # links whose speeds differ by less: another plan would not be better
_LARGE = 1 << 20  # bytes, of a copy whose time tells a link's speed
_TOO_SHORT = "training ended before an iteration had repeated often enough to be planned: about ten steps of one kind"


class _Making:
    """A plan being made in a thread. `make` is told to stop by its argument.

    Where the system has no thread left there is no plan: training goes on without.
    """

    def __init__(self, make: Callable[[threading.Event], PackedPlan | None]) -> None:
        self._made: list[PackedPlan | None] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: self._made.append(make(self._stop)), name="memfit planner")
        self._started = True
        try:
            self._thread.start()
        except RuntimeError:
            self._started = False

    def cancel(self) -> None:
        """End it as soon as can be, and wait until it has."""
        self._stop.set()
        self.done(None)

    def done(self, timeout: float | None = 0.0) -> bool:
        """Whether it has ended, within `timeout` seconds (None: however long that takes)."""
        if self._started:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> PackedPlan | None:
        """Return the plan; None when none was found, or the making failed."""
        return self._made[0] if self._made else None


@dataclass
class _Known:
    """What is known of one iteration signature."""

    iterations: PackedIterations
    plan: PackedPlan | None = None
    making: _Making | None = None
    corrections: int = 0  # of the link's speed
    refused: int = 0  # how often the engine had no room for it

    @property
    def record_bytes(self) -> int:
        """What it takes."""
        return self.iterations.packed.size_bytes + (self.plan.packed.size_bytes if self.plan else 0)


@dataclass
class Planner:
    """Watches iterations end, and switches the engine to a plan."""

    engine: ModuleType
    link: SessionLink
    given: Plan | None = None
    measures: bool = False  # note what iterations under a plan did
    measured: Timeline | None = None  # the last of them
    given_outcome: str = ""  # "used", or why it was not; empty while it has not been tried
    known: dict[int, _Known | None] = field(default_factory=dict)
    """By signature; None for an iteration that cannot be planned."""
    followed: int = 0
    """Iterations that a plan was in force for throughout, and right."""
    _closed: bool = False
    _at_boundary: bool = True
    _recording: int = 0  # iterations yet to be recorded
    _signature: int = 0  # of the iteration that is recorded or planned
    _in_use: bool = False
    _strikes: int = 0
    _stalled: int = 0
    _ended: deque[dict[str, int]] = field(default_factory=lambda: deque(maxlen=_STALLED + 1))
    """The engine's stats when the last iterations ended, the latest last."""

    @property
    def record_bytes(self) -> int:
        """What is kept of iterations and of their plans."""
        return sum(known.record_bytes for known in list(self.known.values()) if known is not None)

    @property
    def plan(self) -> PackedPlan | None:
        """The plan in force, or that was last; None if there was none."""
        known = self.known.get(self._signature)
        return known.plan if known else None

    @property
    def in_use(self) -> bool:
        """Whether a plan is in force."""
        return self._in_use

    def close(self) -> None:
        """End what is under way: the session is over."""
        self._closed = True
        for known in list(self.known.values()):
            if known is not None and known.making is not None:
                known.making.cancel()
        if self.given is not None and not self.given_outcome:
            self._refuse_given(_TOO_SHORT)

    def iteration_ended(self, at_boundary: bool = True) -> None:
        """Take the next step towards a plan. `at_boundary`: nothing has been allocated since the iteration ended."""
        if self._closed:
            return
        self._at_boundary = at_boundary
        signatures = self.engine.signatures()
        stats = self.engine.stats()
        before = self._ended[-1] if self._ended else stats
        self._ended.append(stats)
        if self._recording:
            self._record(signatures[-1])
        elif self._in_use and self.engine.has_plan():
            self._watch(stats, before)
        elif self._in_use:
            self._lost()
        if self._in_use or self._recording:
            return
        if signatures[-1] in self.known or signatures[-2:-1] == signatures[-1:]:
            self._begin(signatures[-1])

    def _begin(self, signature: int) -> None:
        self._signature = signature
        if signature not in self.known:
            self._recording = _ITERATIONS
            self.engine.start_recording()
        elif known := self.known[signature]:
            self._use_when_made(known)

    def _record(self, signature: int) -> None:
        self._recording -= 1
        if signature == self._signature and self._recording:
            return
        # Where the last two whole iterations began and ended.
        op_marks, tick_marks = self.engine.iteration_marks()[-3:], self.engine.tick_marks()[-3:]
        raw = RawRecording.of(self.engine.stop_recording())
        repeated, self._recording = signature == self._signature, 0
        if not repeated or len(tick_marks) != 3 or len(op_marks) != 3:
            return
        self._plan_for(PackedIterations.of(raw, op_marks, tick_marks, f"{signature:016x}", self.engine.alignment()))

    def _plan_for(self, iterations: PackedIterations) -> None:
        self.known[self._signature] = known = _Known(iterations)
        known.making = self._make(iterations)
        known.making.done(_PATIENCE)
        self._use_when_made(known)

    def _make(self, iterations: PackedIterations) -> _Making:
        page = self.engine.page_bytes()
        budget = self.engine.stats()["budget_bytes"] // page * page
        machine, op_hash = self._machine(), self.engine.op_hash

        def found(stop: threading.Event) -> EnginePlan | None:
            recorded = iterations.recorded()
            if recorded is None:
                return None
            if self.given is not None:
                given = given_engine_plan(recorded, self.given, budget, machine, op_hash)
                if isinstance(given, EnginePlan):
                    return given
                self._refuse_given(given)
            return make_engine_plan(recorded, budget, machine, op_hash, stop.is_set)

        def make(stop: threading.Event) -> PackedPlan | None:
            plan = found(stop)
            return None if plan is None else PackedPlan.of(plan, iterations)

        return _Making(make)

    def _refuse_given(self, why: str) -> None:
        """Say once that the given plan is not used: what was asked for would else not happen, and nobody would know."""
        if self.given_outcome:
            return
        self.given_outcome = why
        remedy = "the session plans by itself; for another plan: memfit trace, then memfit plan --addresses"
        say(f"memfit: warning: the given plan is not used: {why}; {remedy}")

    def _use_when_made(self, known: _Known) -> None:
        if known.making is not None:
            if not known.making.done():
                return
            made, known.making = known.making.result(), None
            known.plan = made or known.plan
        plan = known.plan
        self._in_use = plan is not None and self._put_in_force(plan.plan())
        self._stalled = 0
        if self._in_use and plan is not None:
            self.given_outcome = "used" if plan.is_given else self.given_outcome
            return
        known.refused += 1
        if plan is None or known.refused >= _STRIKES:
            if plan is not None and plan.is_given:
                self._refuse_given("there is no room for it beside the other living storages")
            self.known[self._signature] = None

    def _put_in_force(self, plan: EnginePlan) -> bool:
        addresses = plan.addresses
        used: bool = self.engine.use_plan(addresses.columns(), addresses.zone_bytes, addresses.iterations, plan.swaps,
                                          plan.resident, self._at_boundary)  # fmt: skip
        host.give_back_freed()  # recording, planning and unpacking took many times what is kept
        return used

    def _watch(self, stats: dict[str, int], before: dict[str, int]) -> None:
        """The plan was in force throughout the iteration: was it right?"""
        known = self.known.get(self._signature)
        missed = any(stats[name] > before[name] for name in ("plan_mismatches", "derailments"))
        self._strikes = self._strikes + 1 if missed else 0
        self.followed += not missed
        if self._strikes >= _STRIKES:
            self._forget()
        elif known is not None and known.making is not None:
            self._use_when_made(known)
        elif known is not None and not missed:
            self._measure(known)
            self._compare_stalls(known, stats["stall_ns"] - before["stall_ns"])

    def _measure(self, known: _Known) -> None:
        if not self.measures or known.plan is None or known.plan.compute_us is None:
            return
        plan = known.plan.plan()
        if plan.plan is None or plan.predicted is None:
            return
        raw = self.engine.stop_timeline()
        self.measured = measured_timeline(plan.plan, raw, plan.predicted.host_bytes) or self.measured
        self.engine.start_timeline()

    def _compare_stalls(self, known: _Known, stall_ns: int) -> None:
        plan = known.plan
        if plan is None or plan.compute_us is None:
            return
        excess_us = stall_ns / 1000 - plan.stall_us
        self._stalled = self._stalled + 1 if excess_us > _STALL_SHARE * plan.compute_us else 0
        if self._stalled < _STALLED << known.corrections:
            return
        self._stalled = 0
        if not _alike(self._machine(), plan.machine):
            known.corrections += 1
            known.making = self._make(known.iterations)

    def _lost(self) -> None:
        """The engine has given the plan up for want of room; it is taken up again when its iteration has come back."""
        self._in_use = False
        self._strikes += 1
        if self._strikes >= _STRIKES:
            self._forget()

    def _forget(self) -> None:
        self._strikes, self._in_use = 0, False
        self.known.pop(self._signature, None)

    def _machine(self) -> Machine:
        """Return how fast copies have been in this session, or are taken to be while there were none."""
        return self.link.machine(self.engine.stats(), self._ended[0] if self._ended else None)


def _alike(a: Machine, b: Machine | None) -> bool:
    if b is None:
        return False
    pairs = ((a.out, b.out), (a.into, b.into))
    return all(abs(x.copy_us(_LARGE) / y.copy_us(_LARGE) - 1) < _ALIKE for x, y in pairs)

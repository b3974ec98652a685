"""Planned mode: once an iteration has repeated, the next ones run by a plan made for it.

Iterations are recorded, packed, and the table handed to the engine; what does not fit the budget is swapped by the
plan. An iteration that is not the planned one costs nothing but the table's use: each allocation is checked by its
size, each op by its name. After several such iterations in a row the plan is made anew; plans are kept by signature.
When ops wait for copies longer than foreseen, the link's speed is taken from what was measured, and a plan is made
with it while training goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from memfit.ir import Plan, Timeline
from memfit.machine import Link, Machine
from memfit.running.engine_plan import EnginePlan, Recorded, make_engine_plan
from memfit.running.tiers import TierSpec
from memfit.running.timeline import measured_timeline
from memfit.tracing.build import RawRecording

_GUESS_GB_PER_S = {"ram": 4.0, "disk": 0.5}
_DERATING = 0.9  # a plan for a link slower than it is costs little, the other way round much
_STRIKES = 3
_ITERATIONS = 3  # that are recorded; the recording may begin in the midst of the first
_PATIENCE = 2.0  # seconds that training waits for a plan before it goes on without
_STALL_SHARE = (
    0.005  # of an iteration, beyond what was foreseen, in a row of iterations: then the link is not as assumed
)
_STALLED = 3
_CORRECTIONS = 3  # of one plan
_ALIKE = 0.1  # links whose speeds differ by less: another plan would not be better
_LARGE = 1 << 20  # bytes, of a copy whose time tells a link's speed


class _Making:
    """A plan being made in a thread. `make` is told to stop by its argument."""

    def __init__(self, make: Callable[[threading.Event], EnginePlan | None]) -> None:
        self._made: list[EnginePlan | None] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: self._made.append(make(self._stop)), name="memfit planner")
        self._thread.start()

    def cancel(self) -> None:
        """End it as soon as can be, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def done(self, timeout: float = 0.0) -> bool:
        """Whether it has ended, within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> EnginePlan | None:
        """Return the plan; None when none was found, or the making failed."""
        return self._made[0] if self._made else None


@dataclass
class _Known:
    """What is known of one iteration signature."""

    recorded: Recorded
    plan: EnginePlan | None = None
    making: _Making | None = None
    corrections: int = 0
    refused: int = 0  # how often the engine had no room for it


@dataclass
class Planner:
    """Watches iterations end, and switches the engine to a plan."""

    engine: ModuleType
    tier: TierSpec
    given: Plan | None = None
    measures: bool = False  # note what iterations under a plan did
    measured: Timeline | None = None  # the last of them
    known: dict[int, _Known | None] = field(default_factory=dict)
    """By signature; None for an iteration that cannot be planned."""
    _at_boundary: bool = True
    _recording: int = 0  # iterations yet to be recorded
    _signature: int = 0  # of the iteration that is recorded or planned
    _in_use: bool = False
    _strikes: int = 0
    _stalled: int = 0
    _before: dict[str, int] = field(default_factory=dict)  # the engine's stats when the last iteration ended

    @property
    def plan(self) -> EnginePlan | None:
        """The plan in force, or that was last; None if there was none."""
        known = self.known.get(self._signature)
        return known.plan if known else None

    def close(self) -> None:
        """End what is under way: the session is over."""
        for known in self.known.values():
            if known is not None and known.making is not None:
                known.making.cancel()

    def iteration_ended(self, at_boundary: bool = True) -> None:
        """Take the next step towards a plan. `at_boundary`: nothing has been allocated since the iteration ended."""
        self._at_boundary = at_boundary
        signatures = self.engine.signatures()
        stats, before = self.engine.stats(), self._before
        self._before = stats
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
        recorded = Recorded.of(raw, op_marks, tick_marks, f"{signature:016x}", self.engine.alignment())
        self.known[signature] = known = None if recorded is None else _Known(recorded)
        if known is not None:
            known.making = self._make(known.recorded)
            known.making.done(_PATIENCE)
            self._use_when_made(known)

    def _make(self, recorded: Recorded) -> _Making:
        page = self.engine.page_bytes()
        budget = self.engine.stats()["budget_bytes"] // page * page
        machine, given = self._machine(), self.given
        return _Making(
            lambda stop: make_engine_plan(recorded, budget, machine, self.engine.op_hash, stop.is_set, given)
        )

    def _use_when_made(self, known: _Known) -> None:
        if known.making is not None:
            if not known.making.done():
                return
            made, known.making = known.making.result(), None
            known.plan = made or known.plan
        plan = known.plan
        self._in_use = plan is not None and self.engine.use_plan(
            plan.addresses.columns(), plan.addresses.zone_bytes, plan.addresses.iterations, plan.swaps, plan.resident,
            self._at_boundary,
        )  # fmt: skip
        self._stalled = 0
        if self._in_use:
            return
        known.refused += 1
        if plan is None or known.refused >= _STRIKES:
            self.known[self._signature] = None

    def _watch(self, stats: dict[str, int], before: dict[str, int]) -> None:
        """The plan was in force throughout the iteration: was it right?"""
        known = self.known.get(self._signature)
        missed = any(stats[name] > before[name] for name in ("plan_mismatches", "derailments"))
        self._strikes = self._strikes + 1 if missed else 0
        if self._strikes >= _STRIKES:
            self._forget()
        elif known is not None and known.making is not None:
            self._use_when_made(known)
        elif known is not None and not missed:
            self._measure(known)
            self._compare_stalls(known, stats["stall_ns"] - before["stall_ns"])

    def _measure(self, known: _Known) -> None:
        if not self.measures or known.plan is None or known.plan.plan is None or known.plan.predicted is None:
            return
        raw = self.engine.stop_timeline()
        self.measured = measured_timeline(known.plan.plan, raw, known.plan.predicted.host_bytes) or self.measured
        self.engine.start_timeline()

    def _compare_stalls(self, known: _Known, stall_ns: int) -> None:
        plan = known.plan
        if plan is None or plan.predicted is None or known.corrections >= _CORRECTIONS:
            return
        foreseen_us = sum(stall.duration_us for stall in plan.predicted.stalls)
        excess_us = stall_ns / 1000 - foreseen_us
        self._stalled = self._stalled + 1 if excess_us > _STALL_SHARE * plan.predicted.compute_us else 0
        if self._stalled >= _STALLED:
            self._stalled = 0
            known.corrections += 1
            if not _alike(self._machine(), plan.machine):
                known.making = self._make(known.recorded)

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
        stats = self.engine.stats()
        rates = {}
        for way in ("out", "in"):
            moved, ns = stats[f"bytes_{way}"], stats[f"{way}_ns"]
            rates[way] = moved / ns if moved and ns else _GUESS_GB_PER_S[self.tier.kind]
        latency_us = 1e6 * self.tier.link_latency_seconds
        out, into = (Link.of_bandwidth(_DERATING * rates[way], latency_us) for way in ("out", "in"))
        return Machine(f"{self.tier} as measured", out, into)


def _alike(a: Machine, b: Machine | None) -> bool:
    if b is None:
        return False
    pairs = ((a.out, b.out), (a.into, b.into))
    return all(abs(x.copy_us(_LARGE) / y.copy_us(_LARGE) - 1) < _ALIKE for x, y in pairs)

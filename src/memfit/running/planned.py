"""Planned mode: once an iteration has repeated, the next ones run by a plan made for it.

Iterations are recorded, packed, and the table handed to the engine; what does not fit the budget is swapped by the
plan. An iteration that is not the planned one costs nothing but the table's use: each allocation is checked by its
size, each op by its name. After several such iterations in a row the plan is made anew; plans are kept by signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

from memfit.machine import Link, Machine
from memfit.running.engine_plan import EnginePlan, Recorded, make_engine_plan
from memfit.running.tiers import TierSpec
from memfit.tracing.build import RawRecording

_GUESS_GB_PER_S = {"ram": 4.0, "disk": 0.5}
_STRIKES = 3
_ITERATIONS = 3  # that are recorded; the recording may begin in the midst of the first


@dataclass
class Planner:
    """Watches iterations end, and switches the engine to a plan."""

    engine: ModuleType
    tier: TierSpec
    plans: dict[int, EnginePlan | None] = field(default_factory=dict)
    """By signature; None for an iteration that cannot be planned."""
    _at_boundary: bool = True
    _recording: int = 0  # iterations yet to be recorded
    _signature: int | None = None  # of the iteration that is recorded or planned
    _strikes: int = 0
    _misses: int = 0

    @property
    def plan(self) -> EnginePlan | None:
        """The plan in force, or None."""
        return self.plans.get(self._signature or 0) if self.engine.has_plan() else None

    def iteration_ended(self, at_boundary: bool = True) -> None:
        """Take the next step towards a plan. `at_boundary`: nothing has been allocated since the iteration ended."""
        self._at_boundary = at_boundary
        signatures = self.engine.signatures()
        if self._recording:
            self._record(signatures[-1])
        elif self.engine.has_plan() and not self._struck_out():
            return
        elif self.plans.get(signatures[-1]) is not None or signatures[-2:-1] == signatures[-1:]:
            self._begin(signatures[-1])

    def _begin(self, signature: int) -> None:
        self._signature = signature
        if signature in self.plans:
            self._use(self.plans[signature])
        else:
            self._recording = _ITERATIONS
            self.engine.start_recording()

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
        recorded = Recorded.of(raw, op_marks, tick_marks, f"{signature:016x}")
        self.plans[signature] = recorded and make_engine_plan(
            recorded, self.engine.stats()["budget_bytes"], self._machine(), self.engine.op_hash
        )
        self._use(self.plans[signature])

    def _use(self, plan: EnginePlan | None) -> None:
        self._strikes = 0
        if plan is not None:
            addresses = plan.addresses
            in_force = self.engine.use_plan(
                addresses.columns(), addresses.zone_bytes, addresses.iterations, plan.swaps, plan.resident,
                self._at_boundary,
            )  # fmt: skip
            if not in_force and self._signature is not None:
                self.plans[self._signature] = None
        self._misses = self._count_misses()

    def _machine(self) -> Machine:
        """Return how fast copies have been in this session, or are taken to be while there were none."""
        stats = self.engine.stats()
        rates = {}
        for way in ("out", "in"):
            moved, ns = stats[f"bytes_{way}"], stats[f"{way}_ns"]
            rates[way] = moved / ns if moved and ns else _GUESS_GB_PER_S[self.tier.kind]
        links = (Link.of_bandwidth(rates[way], latency_us=1e6 * self.tier.link_latency_seconds) for way in ("out", "in"))
        return Machine(f"{self.tier} as measured", *links)

    def _count_misses(self) -> int:
        stats = self.engine.stats()
        return int(stats["plan_mismatches"] + stats["derailments"])

    def _struck_out(self) -> bool:
        """Whether the plan has not matched for several iterations in a row; then it is forgotten."""
        misses = self._count_misses()
        self._strikes = self._strikes + 1 if misses > self._misses else 0
        self._misses = misses
        if self._strikes < _STRIKES:
            return False
        self._strikes = 0
        if self._signature is not None:
            self.plans.pop(self._signature, None)
        return True

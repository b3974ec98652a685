"""Planned mode: once an iteration has repeated, its allocations get their addresses from a table.

Two iterations are recorded, packed, and the table handed to the engine. An iteration that is not the planned one
costs nothing but the table's use: each allocation is checked by its size. After several such iterations in a row
the plan is made anew; plans are kept by iteration signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

from memfit.planning.addresses import AddressPlan, allocations_of, plan_addresses
from memfit.tracing.build import RawRecording

_ALIGNMENT = 64  # of the arena on CPU
_EFFORT = 1.0  # seconds
_STRIKES = 3
_ITERATIONS = 3  # that are recorded; the recording may begin in the midst of the first


@dataclass
class Planner:
    """Watches iterations end, and switches the engine to a plan."""

    engine: ModuleType
    plans: dict[int, AddressPlan | None] = field(default_factory=dict)
    """By signature; None for an iteration that cannot be planned."""
    _at_boundary: bool = True
    _recording: int = 0  # iterations yet to be recorded
    _signature: int | None = None  # of the iteration that is recorded or planned
    _in_force: bool = False
    _strikes: int = 0
    _mismatches: int = 0

    def iteration_ended(self, at_boundary: bool = True) -> None:
        """Take the next step towards a plan. `at_boundary`: nothing has been allocated since the iteration ended."""
        self._at_boundary = at_boundary
        signatures = self.engine.signatures()
        if self._recording:
            self._record(signatures[-1])
        elif self._in_force and not self._struck_out():
            return
        elif len(signatures) > 1 and signatures[-1] == signatures[-2]:
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
        marks = self.engine.tick_marks()[-3:]  # where the last two whole iterations began and ended
        raw = RawRecording.of(self.engine.stop_recording())
        repeated, self._recording = signature == self._signature, 0
        if not repeated or len(marks) != 3:
            return
        allocations = allocations_of(raw.ticks, marks)
        plan = None
        if allocations is not None and allocations.count:
            plan = plan_addresses(allocations, alignment=_ALIGNMENT, effort=_EFFORT)
        self.plans[signature] = plan
        self._use(plan)

    def _use(self, plan: AddressPlan | None) -> None:
        self._strikes = 0
        self._in_force = plan is not None and self.engine.use_plan(
            plan.size, plan.slots, plan.slot_offset, plan.due_begin, plan.due_allocation,
            plan.due_periods_ago, plan.zone_bytes, plan.iterations, self._at_boundary,
        )  # fmt: skip
        self._mismatches = self.engine.stats()["plan_mismatches"]
        if not self._in_force and self._signature is not None:
            self.plans[self._signature] = None

    def _struck_out(self) -> bool:
        """Whether the plan has not matched for several iterations in a row; then it is forgotten."""
        mismatches = self.engine.stats()["plan_mismatches"]
        self._strikes = self._strikes + 1 if mismatches > self._mismatches else 0
        self._mismatches = mismatches
        if self._strikes < _STRIKES:
            return False
        self._in_force, self._strikes = False, 0
        if self._signature is not None:
            self.plans.pop(self._signature, None)
        return True

"""A session at one moment, and what happened between two of them, in a line."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.running.planned.planner import Planner
from memfit.running.session.stats import Stats
from memfit.units import format_bytes

IN_FORCE = "plan in force"
_PER_GB, _PER_MB = 1e9, 1e6


@dataclass(frozen=True)
class Status:
    """A session at one moment."""

    seconds: float
    """Since it began."""
    stats: Stats
    plan: str
    """The state of planned mode: `IN_FORCE`, "searching a plan", or "no plan" and why."""
    planned_iterations: int

    @property
    def waited_seconds(self) -> float:
        """The time that ops have waited for copies, planned or not."""
        return self.stats.waited_ns / 1e9

    def since(self, before: Status) -> dict[str, float]:
        """Return what happened since `before`: seconds, iterations, bytes both ways, and seconds waited for copies."""
        return {
            "seconds_since": self.seconds - before.seconds,
            "iterations_since": self.stats.iterations - before.stats.iterations,
            "bytes_out_since": self.stats.bytes_out - before.stats.bytes_out,
            "bytes_in_since": self.stats.bytes_in - before.stats.bytes_in,
            "waited_seconds_since": self.waited_seconds - before.waited_seconds,
        }

    def line(self, before: Status) -> str:
        """Return the line for a person; rates and waits are those since `before`."""
        since = self.since(before)
        seconds = max(since["seconds_since"], 1e-9)
        waits = min(since["waited_seconds_since"] / seconds, 1.0)  # several threads may wait at once
        by_plan = f"{self.planned_iterations} by plan" if self.planned_iterations else self.plan
        return " | ".join(
            (
                f"it {self.stats.iterations}",
                _arena(self.stats),
                _rates(since["bytes_out_since"] / seconds, since["bytes_in_since"] / seconds),
                f"waits {100 * waits:.1f} %",
                by_plan if self.plan == IN_FORCE else self.plan,
            )
        )


def plan_state(planner: Planner) -> str:
    """Return whether a plan is in force, one is looked for, or there is none, and why."""
    if planner.in_force:
        return IN_FORCE
    if planner.is_looking:
        return "searching a plan"
    reasons = "; ".join(dict.fromkeys(planner.pauses.reasons))
    return f"no plan: {reasons}" if reasons else "no plan yet"


def _arena(stats: Stats) -> str:
    """Return what is in use of the limit, with the unit once if it is one for both."""
    used, limit = format_bytes(stats.resident_bytes), stats.budget_bytes
    if not limit:
        return f"arena {used}, no limit"
    number, unit = used.split()
    whole = format_bytes(limit)
    return f"arena {number if whole.endswith(f' {unit}') else used}/{whole}"


def _rates(out: float, in_: float) -> str:
    """Return bytes a second, both in one unit."""
    per, unit, digits = (_PER_GB, "GB/s", 1) if max(out, in_) >= _PER_GB / 10 else (_PER_MB, "MB/s", 0)
    return f"out {out / per:.{digits}f} in {in_ / per:.{digits}f} {unit}"

"""Running the cells of a part: each once, within its time and the part's, kept as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import Outcome, run_cell
from benchmarks.gpu.store import Results

LEAST_S = 4.0  # a cell is not begun with less time left
Runner = Callable[[dict[str, Any], float, str], Outcome]


@dataclass(frozen=True)
class Options:
    """How everything is run. `models`: of the parts that train; None is each part's own choice."""

    out: Path
    device: str = "cuda"
    quick: bool = False
    resume: bool = False
    retry: bool = False
    start: str = "fork"
    models: tuple[str, ...] | None = None
    engine_error: str = ""  # why cells that need memfit cannot run

    @property
    def settings(self) -> dict[str, Any]:
        """What results must have in common to stand in one table."""
        return {"device": self.device, "quick": self.quick}


@dataclass
class Bench:
    """One part under way. `deadline` is a moment of the monotonic clock."""

    results: Results
    options: Options
    deadline: float
    run_cell: Runner = run_cell
    say: Callable[[str], None] = print
    skipped: list[str] = field(default_factory=list)

    def run(self, key: str, call: str, limit_s: float, memfit: bool = False, **request: Any) -> dict[str, Any] | None:
        """Run one cell unless it has been; return its result, or None if it has none."""
        if self.results.tried(key, self.options.retry):
            return self.results.result(key)
        left = self.deadline - time.monotonic()
        if left < LEAST_S:
            self.skipped.append(key)
            return None
        if memfit and self.options.engine_error:
            self.results.put(key, {"status": "error", "error": self.options.engine_error, "result": None})
            return None
        allowed = min(limit_s, left)
        request |= {"call": call, "device": self.options.device, "quick": self.options.quick, "limit_s": allowed}
        outcome = self.run_cell(request, allowed, self.options.start)
        if outcome["status"] == "timeout" and allowed < limit_s:
            outcome["status"] = "cut"  # by the part's deadline: to be run again when there is time
            self.skipped.append(key)
        self.results.put(key, outcome)
        self.say(f"  {key}: {outcome['status']} in {outcome['seconds']:.1f} s{_why(outcome)}")
        return self.results.result(key)

    def finish(self) -> None:
        """Note whether every cell was tried."""
        self.results.complete = not self.skipped
        self.results.save()


def _why(outcome: Outcome) -> str:
    return f" - {outcome['error'][:300]}" if outcome.get("error") else ""

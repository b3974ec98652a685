"""Plans on disk: what one run has found out about an iteration, for the next run that repeats it.

A file's name is a hash of everything that a plan depends on, and the file says the same: the iteration itself (its ops,
the sizes and lives of its storages and who uses them), the budget, the tier and the device, and the versions. No time
is part of it, and no number that another process would give otherwise. Whatever is odd about a file, the plan is made
as if there were none, and written over it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memfit.errors import MemfitError
from memfit.files.kept_plan import KeptPlan, load_kept_plan, save_kept_plan
from memfit.ir import Trace
from memfit.running.engine.plans import ENDING, trim

_FORMAT = 2  # of what planners and the engine make of a plan: another number makes every kept one unknown


@dataclass(frozen=True)
class PlanCache:
    """The plans kept in `folder`, for runs in `circumstances`: what plans depend on beside iteration and budget."""

    folder: Path
    circumstances: tuple[str, ...] = ()
    _writers: list[threading.Thread] = field(default_factory=list)

    def key_of(self, trace: Trace, budget_bytes: int) -> str:
        """Return the name of what `trace` is planned as within `budget_bytes`, the same in every process."""
        about = [str(_FORMAT), *self.circumstances, trace.signature, str(budget_bytes), _identity(trace)]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def find(self, key: str) -> KeptPlan | None:
        """Return the plan that is kept as `key`, if there is a whole one."""
        path = self._path(key)
        try:
            kept = load_kept_plan(path)
            os.utime(path)  # the oldest go first
        except (MemfitError, OSError, ValueError):
            return None
        return kept if kept.key == key else None

    def keep(self, make: Callable[[], KeptPlan | None]) -> None:
        """Write what `make` returns in a thread beside training; where that cannot be done, it is not kept."""
        writer = threading.Thread(target=self._write, args=(make, [*self._writers]), name="memfit plan cache")
        with contextlib.suppress(RuntimeError):  # the system has no thread left
            writer.start()
            self._writers.append(writer)

    def close(self) -> None:
        """Wait until all is written."""
        while self._writers:
            self._writers.pop().join()

    def _write(self, make: Callable[[], KeptPlan | None], before: Sequence[threading.Thread]) -> None:
        for writer in before:  # the last plan is the one to keep
            writer.join()
        kept = make()
        if kept is None:
            return
        with contextlib.suppress(MemfitError, OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_kept_plan(kept, self._path(kept.key))
            trim(self.folder)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{ENDING}"


def _identity(trace: Trace) -> str:
    """Return a hash of the trace by which its storages' numbers, and so a plan's, mean the same in both runs."""
    digest = hashlib.sha256()
    shape = (trace.ticks, trace.alignment, trace.device, len(trace.storages))
    ops = ((op.name, op.first_tick, op.reads, op.writes) for op in trace.ops)
    lives = ((s.size_bytes, s.alloc, s.free, s.alloc_tick, s.free_tick) for s in trace.storages)
    for row in (shape, *ops, *lives):
        digest.update(repr(row).encode())
    return digest.hexdigest()

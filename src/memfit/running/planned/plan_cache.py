"""Plans on disk: what one run has found out about an iteration, for the next run that repeats it.

A file's name is a hash of everything that a plan depends on, and the file says the same: the iteration itself (its ops,
the sizes and lives of its storages and who uses them), the budget, the tier and the device, and the versions. No time
is part of it, and no number that another process would give otherwise. Whatever is odd about a file, the plan is made
as if there were none, and written over it.

Ranks that share a machine want the same plans at the same time: one searches, and the others take the plan from here.
"""

from __future__ import annotations

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
from memfit.messages import described, say
from memfit.running.engine.plans import ENDING, trim
from memfit.running.planned.claims import Claims

_FORMAT = 3  # of what planners and the engine make of a plan: another number makes every kept one unknown


@dataclass(frozen=True)
class PlanCache:
    """The plans kept in `folder`, for runs in `circumstances`: what plans depend on beside iteration and budget."""

    folder: Path
    circumstances: tuple[str, ...] = ()
    claims: Claims | None = None  # where ranks share the machine
    _writers: list[threading.Thread] = field(default_factory=list)
    _found: dict[str, int] = field(default_factory=dict)  # by key, the number of the file that was last found

    def key_of(self, trace: Trace, budget_bytes: int) -> str:
        """Return the name of what `trace` is planned as within `budget_bytes`, the same in every process."""
        about = [str(_FORMAT), *self.circumstances, trace.signature, str(budget_bytes), _identity(trace)]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def find(self, key: str) -> KeptPlan | None:
        """Return the plan that is kept as `key`, if there is a whole one."""
        path = self._path(key)
        try:
            self._found[key] = path.stat().st_ino  # before it is read: the next one is another file
            kept = load_kept_plan(path)
            os.utime(path)  # the oldest go first
        except (MemfitError, OSError, ValueError):
            return None
        return kept if kept.key == key else None

    def from_another_rank(
        self, key: str, claim: str, stop: threading.Event, *, is_joint: bool, is_another: bool
    ) -> KeptPlan | None:
        """Return the plan that another rank of this machine searches for now, or has just found.

        None if this rank is to search: then it has the `claim`, and says `settled` when nobody need wait any longer.
        `is_joint`: only a plan in which swapping and making again were weighed against each other. `is_another`: not
        the one that was last found.
        """

        seen = self._found.get(key, 0) if is_another else 0

        def look() -> KeptPlan | None:
            nonlocal seen
            before, seen = seen, self._file_number(key)
            if seen == before:  # read only once
                return None
            kept = self.find(key)
            return kept if kept is not None and (kept.is_joint or not is_joint) else None

        return None if self.claims is None else self.claims.wait_for(claim, look, stop)

    def settled(self, claim: str) -> None:
        """Let other ranks go on that wait for this one's plan: it is kept, or there is none to keep."""
        if self.claims is not None:
            self.claims.release(claim)

    def settled_all(self) -> None:
        """Let other ranks go on that wait for any plan of this one's: it has failed."""
        if self.claims is not None:
            self.claims.release_all()

    def keep(self, key: str, make: Callable[[], KeptPlan | None], claim: str = "") -> None:
        """Write what `make` returns in a thread beside training; where that cannot be done, it is not kept."""
        about = (key, make, claim, [*self._writers])
        writer = threading.Thread(target=self._write, args=about, name="memfit plan cache")
        try:
            writer.start()
        except RuntimeError:  # the system has no thread left
            self.settled(claim)
        else:
            self._writers.append(writer)

    def close(self) -> None:
        """Wait until all is written."""
        while self._writers:
            self._writers.pop().join()
        if self.claims is not None:
            self.claims.release_all()

    def _write(
        self, key: str, make: Callable[[], KeptPlan | None], claim: str, before: Sequence[threading.Thread]
    ) -> None:
        for writer in before:  # the last plan is the one to keep
            writer.join()
        try:
            if (kept := make()) is not None:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                save_kept_plan(kept, self._path(key))
                trim(self.folder)
        except (MemfitError, OSError):  # the next run makes it anew
            pass
        except Exception as error:
            say(f"memfit: note: a plan was not kept for the next run ({described(error)})")
        self.settled(claim)

    def _file_number(self, key: str) -> int:
        """Return the number of the file of `key`, which another file has that is written over it; 0 without one."""
        try:
            return self._path(key).stat().st_ino
        except OSError:
            return 0

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{ENDING}"


def _identity(trace: Trace) -> str:
    """Return a hash of the trace by which its storages' numbers, and so a plan's, mean the same in both runs."""
    digest = hashlib.sha256()
    shape = (trace.ticks, trace.alignment, trace.device, len(trace.storages))
    ops = ((op.name, op.first_tick, op.reads, op.writes) for op in trace.ops)
    lives = ((s.size_bytes, s.alloc, s.free, s.alloc_tick, s.free_tick, s.pinned_from) for s in trace.storages)
    for row in (shape, *ops, *lives):
        digest.update(repr(row).encode())
    return digest.hexdigest()

"""The folder of plans that are kept for later runs: where it is, and what goes when there are too many."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from memfit.running.engine.cache import cache_folder

ENDING = ".plan.json.gz"
"""The end of their files' names."""
ANSWERS = ".tried.json"
"""The end of the names of the files that have what was tried of calls (`KeptAnswers`)."""
_SWITCH = "MEMFIT_PLAN_CACHE"
_MOST_FILES = 256
_MOST_BYTES = 64 << 20
_WRITTEN_BY_NOW = 3600  # seconds: after these its writer was killed


def plans_folder() -> Path | None:
    """Return the folder of kept plans; None if MEMFIT_PLAN_CACHE is "off". It may also name a folder."""
    named = os.environ.get(_SWITCH, "")
    if named.strip().lower() in ("off", "0", "no", "false"):
        return None
    usual = named.strip().lower() in ("", "on", "1", "yes", "true")
    return cache_folder() / "plans" if usual else Path(named).absolute()


def kept_files(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of kept plans and their bytes, those used last first."""
    return [(path, size) for _, size, path in _by_age(folder)]


def trim(folder: Path, most_files: int = _MOST_FILES, most_bytes: int = _MOST_BYTES) -> None:
    """Remove the files that were not used for the longest time, as far as there are too many."""
    count = total = 0
    for _, size, path in _by_age(folder):
        count, total = count + 1, total + size
        if count > most_files or total > most_bytes:
            _remove((path,))
    _remove(path for path in _unfinished(folder) if _age_s(path) > _WRITTEN_BY_NOW)


def clear(folder: Path) -> int:
    """Remove kept plans, what was tried of calls, and what killed writers have left; return the number of plans."""
    found = kept_files(folder)
    _remove((*(path for path, _ in found), *_unfinished(folder), *folder.glob(f"*{ANSWERS}")))
    return len(found)


def _unfinished(folder: Path) -> list[Path]:
    """Return the files that are being written, or that a writer has left when it was killed."""
    return list(folder.glob(f".*{ENDING}.*.tmp"))


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # it is finished
        return 0.0


def _by_age(folder: Path) -> list[tuple[float, int, Path]]:
    """Return the time of the last use, the bytes and the path of each kept plan, the youngest first."""
    found = []
    for path in folder.glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):  # another process has removed it
            about = path.stat()
            found.append((about.st_mtime, about.st_size, path))
    return sorted(found, reverse=True)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

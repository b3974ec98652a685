"""The statistics of a run, as `memfit run --stats` writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memfit.errors import InputError
from memfit.files.document import Fields, read_bytes


def load_stats(path: str | os.PathLike[str]) -> Fields:
    """Return the fields of a file of `memfit run --stats`; raises InputError if it is not one."""
    source = Path(path)
    if not is_stats(source):
        raise InputError(f"{source} is not a run's statistics", remedy="write them: memfit run --stats FILE ...")
    return Fields(source, "", json.loads(read_bytes(source)))


def is_stats(path: str | os.PathLike[str]) -> bool:
    """Return whether a file looks like a run's statistics."""
    try:
        values = json.loads(read_bytes(path))
    except (InputError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"exit_code", "budget_bytes", "planned_iterations"} <= values.keys()

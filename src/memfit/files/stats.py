"""The statistics of a run, as `memfit run --stats` writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memfit.errors import InputError
from memfit.files.document import Fields, read_bytes

_OF_A_RUN = {"exit_code", "budget_bytes", "planned_iterations"}


def stats_in(path: str | os.PathLike[str]) -> Fields | None:
    """Return the fields of a file of `memfit run --stats`; None if it is another, or cannot be read."""
    try:
        values = json.loads(read_bytes(path))
    except (InputError, ValueError, RecursionError):
        return None
    is_of_a_run = isinstance(values, dict) and values.keys() >= _OF_A_RUN
    return Fields(Path(path), "", values) if is_of_a_run else None

"""Recordings written by hand, in the engine's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memfit.tracing.build import RawRecording

COLUMNS = {
    "ops": ("name", "phase", "source", "start_ns", "end_ns", "first_tick", "workspace_bytes", "split_bytes",
            "forward_source", "waited_ns", "with_grad"),
    "accesses": ("op", "block", "is_write"),
    "ticks": ("block", "bytes", "ops_begun", "inside_op", "source"),
    "before": ("block", "bytes", "stays"),
    "pins": ("block", "ops_begun", "inside_op", "tick", "source"),
    "stored": ("block", "bytes"),
    "handovers": ("op", "giver", "taker"),
}  # fmt: skip


def recording(tables: Mapping[str, Sequence[Any]], names: Sequence[str], sources: Sequence[str]) -> RawRecording:
    """Return a recording of these rows, whose ops all compute gradients; a table that is left out is empty."""
    tables = {**tables, "ops": [(*row[:7], 0, *row[7:], 1) for row in tables.get("ops", ())]}
    raw = {name: np.array(tables.get(name, ()), np.int64).tobytes() for name in COLUMNS}
    about = {"columns": COLUMNS, "phases": ["forward", "backward", "optimizer"], "op_names": names, "sources": sources}
    return RawRecording.of(raw | about)

"""From a recording with storages of device meta to a trace of them alone, timed as an accelerator would run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memfit.ir import Op, Trace, align_up
from memfit.shapes import parse_shapes
from memfit.tracing.build import RawRecording, Rows
from memfit.tracing.roofline import Accelerator


def only_ghosts(raw: RawRecording) -> RawRecording:
    """Return the recording without memory of the host, and without what lived inside a single op.

    On meta that is not a kernel's scratch: it belongs to the rule, often in Python, that finds out the output's shape.
    """
    kept_ticks = np.isin(raw.ticks["block"], raw.ghosts) & ~_scratch(raw.ticks)
    before_tick = np.concatenate([[0], np.cumsum(kept_ticks)])
    ops = raw.ops.copy()
    ops["first_tick"] = before_tick[ops["first_tick"]]
    return replace(
        raw,
        ops=ops,
        ticks=raw.ticks[kept_ticks],
        before=raw.before[np.isin(raw.before["block"], raw.ghosts)],
        accesses=raw.accesses[np.isin(raw.accesses["block"], raw.ghosts)],
        pins=raw.pins[:0],  # what has no bytes has no address either
    )


def _scratch(ticks: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which ticks are of blocks that one op both allocated and freed."""
    inside = ticks[ticks["inside_op"] != 0][["block", "bytes", "ops_begun"]].tolist()
    made_in = {block: op for block, size, op in inside if size > 0}
    scratch = [block for block, size, op in inside if size < 0 and made_in.get(block) == op]
    return np.isin(ticks["block"], scratch)


def timed(trace: Trace, shapes: Sequence[str], accelerator: Accelerator) -> Trace:
    """Return `trace` with durations from the roofline, and workspaces of no more than what an op leaves behind.

    `shapes` has one text an op, as the recorder wrote it.
    """
    workspace = [0] * len(trace.ops)
    for storage in trace.storages:
        if not storage.born_before and storage.alloc_tick >= trace.ops[storage.alloc].first_tick:
            workspace[storage.alloc] += align_up(storage.size_bytes, trace.alignment)
    ops = tuple(
        replace(op, duration_us=_duration_us(trace, op, text, accelerator), workspace_bytes=size_bytes)
        for op, text, size_bytes in zip(trace.ops, shapes, workspace, strict=True)
    )
    return replace(trace, ops=ops, device=f"meta, timed as {accelerator.name}")


def _duration_us(trace: Trace, op: Op, shapes: str, accelerator: Accelerator) -> float:
    read_bytes, written_bytes = (sum(trace.storages[s].size_bytes for s in ids) for ids in (op.reads, op.writes))
    return round(accelerator.duration_us(op.name, parse_shapes(shapes), read_bytes, written_bytes), 3)

"""The measured timeline of an iteration under a plan, in the form of the predicted one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memfit.ir import Copy, Direction, Stall, Timeline
from memfit.tracing.build import table_of


def measured_timeline(op_count: int, raw: Mapping[str, Any], host_bytes: int) -> Timeline | None:
    """Return the iteration the engine has noted in `raw`; None if that is not a whole one, of `op_count` ops.

    Times count from the first op's beginning. What Python does between two ops counts to the first of them, waits for
    copies to the second.
    """
    ops, ends = table_of(raw, "op_begins"), table_of(raw, "iteration_ends")
    if len(ops) != op_count or ends["ops_begun"].tolist() != [op_count]:
        return None
    start_ns = int(ops["begins_ns"][0])
    begins = (np.append(ops["begins_ns"], ends["ended_ns"]) - start_ns) / 1000
    waited = np.zeros(op_count)
    stalls, done = [], []
    for copy in table_of(raw, "copies"):
        swap, op, direction = int(copy["swap"]), int(copy["op"]), Direction.IN if copy["is_in"] else Direction.OUT
        stall_us = int(copy["waited_until_ns"] - copy["waited_from_ns"]) / 1000
        if stall_us > 0:
            stalls.append(Stall(op, swap, direction, stall_us))
            waited[op] += stall_us
        began_us, ended_us = (int(copy[name] - start_ns) / 1000 for name in ("began_ns", "ended_ns"))
        done.append(Copy(swap, direction, int(copy["bytes"]), began_us, ended_us))
    return Timeline(
        start_us=tuple((begins[:-1] + waited).tolist()),
        end_us=tuple(begins[1:].tolist()),
        resident_bytes=tuple(ops["resident_bytes"].tolist()),
        stalls=tuple(stalls),
        copies=tuple(done),
        iteration_us=float(begins[-1]),
        compute_us=float(begins[-1] - waited.sum()),
        host_bytes=host_bytes,
    )

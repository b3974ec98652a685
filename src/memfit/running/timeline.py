"""What an iteration under a plan really did, in the form in which it was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memfit.ir import Copy, Direction, Plan, Stall, Timeline

_DIRECTIONS = (Direction.OUT, Direction.IN)


def measured_timeline(plan: Plan, raw: Mapping[str, Any], host_bytes: int) -> Timeline | None:
    """Return the iteration the engine has noted in `raw`; None if it is not a whole one.

    Times count from the first op's beginning. What Python does between two ops counts to the first of them, waits for
    copies to the second.
    """
    ops = np.frombuffer(raw["op_begins"], np.int64).reshape(-1, 2)
    ends = np.frombuffer(raw["iteration_ends"], np.int64).reshape(-1, 2)
    if len(ops) != plan.op_count or len(ends) != 1 or ends[0, 0] != plan.op_count:
        return None
    begins = (np.append(ops[:, 0], ends[0, 1]) - ops[0, 0]) / 1000
    copies = np.frombuffer(raw["copies"], np.int64).reshape(-1, 8).tolist()
    waited = np.zeros(plan.op_count)
    stalls, done = [], []
    for swap, way, size, began, ended, waited_from, waited_until, op in copies:
        direction = _DIRECTIONS[way]
        if waited_until > waited_from:
            stalls.append(Stall(op, swap, direction, (waited_until - waited_from) / 1000))
            waited[op] += (waited_until - waited_from) / 1000
        done.append(Copy(swap, direction, size, (began - ops[0, 0]) / 1000, (ended - ops[0, 0]) / 1000))
    return Timeline(
        start_us=tuple((begins[:-1] + waited).tolist()),
        end_us=tuple(begins[1:].tolist()),
        resident_bytes=tuple(ops[:, 1].tolist()),
        stalls=tuple(stalls),
        copies=tuple(done),
        iteration_us=float(begins[-1]),
        compute_us=float(begins[-1] - waited.sum()),
        host_bytes=host_bytes,
    )

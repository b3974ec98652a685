"""Ops that read and write some storages over the link, again at each touch: nothing comes in, and nothing stays."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from memfit.ir import Trace
from memfit.machine import Faults, Machine
from memfit.planning.lifetimes import births
from memfit.planning.paging.classes import Touch, touches
from memfit.planning.paging.faults import Paged, us_per_byte


def zero_copy(trace: Trace, machine: Machine, faults: Faults, storages: Collection[int]) -> Paged:
    """Time an iteration.

    Arguments:
        trace: The recorded iteration.
        machine: The links, at the rate that ops reach.
        faults: The sweeps of a product.
        storages: The ids of the storages that lie behind the link.

    Returns:
        The iteration; the window has no bytes. What is swept is read each time, and written once.
    """
    born, inside = births(trace), set(storages)
    bytes_in = np.zeros(len(trace.ops), dtype=np.int64)
    bytes_out = np.zeros_like(bytes_in)
    for op, its in enumerate(trace.ops):
        for touch in touches(trace, op, born):
            if touch.storage in inside:
                bytes_in[op] += _touched_bytes(trace, touch, faults.sweeps) if touch.storage in its.reads else 0
                bytes_out[op] += _touched_bytes(trace, touch, 1) if touch.is_write else 0
    compute_us = np.array([op.duration_us for op in trace.ops], dtype=np.float64)
    link_us = bytes_in * us_per_byte(machine.into) + bytes_out * us_per_byte(machine.out)
    nothing = np.zeros_like(bytes_in)
    return Paged(
        op_us=np.maximum(compute_us, link_us),
        faults=nothing,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        used_bytes=nothing,
        compute_us=float(compute_us.sum()),
        missed=np.zeros((0, 3), dtype=np.int64),
    )


def _touched_bytes(trace: Trace, touch: Touch, sweeps: int) -> int:
    size = trace.storages[touch.storage].size_bytes
    if touch.draws:
        return touch.draws * touch.row_bytes
    return size * min(touch.sweeps or sweeps, sweeps)

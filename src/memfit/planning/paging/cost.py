"""The time that an op takes longer when it uses storages where they wait, from closed forms.

Through page frames of F bytes, a stream of W bytes moves W; a product that sweeps W s times moves s (W - F) + F, since
what came in last leaves first and the rest stays; r random rows move the chunks that they lie in. Where there are no
frames the op reads the tier's own memory: that costs what the link costs, each time, or nothing where there is none.
"""

from __future__ import annotations

from dataclasses import replace

from memfit.ir import Map, Trace
from memfit.machine import WINDOW, Faults, Machine
from memfit.planning.paging.classes import Touch, expected_chunks, touches

_ROW_CHUNK = 4096  # bytes that come in at once where rows are touched


def cost_us(trace: Trace, its: Map, born: dict[int, int], machine: Machine) -> float:
    """Return the microseconds that an op spends on what it maps.

    Arguments:
        trace: The recorded iteration, without its maps.
        its: The op's map.
        born: The op in which each storage was allocated (`planning.lifetimes.births`).
        machine: The links.

    Returns:
        The time beside the op's own.
    """
    faults = machine.faults or WINDOW
    if not its.frame_bytes and (machine.faults is None or machine.faults.chunk_bytes):
        return 0.0  # ops read the tier as they read the arena
    bytes_in = bytes_out = 0
    for touch in touches(trace, its.op, born):
        if touch.storage not in its.storages:
            continue
        if trace.ops[its.op].split_bytes:  # it runs in slices, each read and written once
            touch = replace(touch, sweeps=1)
        moved = _moved_bytes(trace, touch, its.frame_bytes, faults)
        was_there = born.get(touch.storage) != its.op
        if was_there and (touch.storage in trace.ops[its.op].reads or touch.draws):
            bytes_in += moved
        if touch.is_write:
            bytes_out += min(moved, trace.storages[touch.storage].size_bytes)
    chunks = -(-(bytes_in + bytes_out) // faults.chunk_bytes) if faults.chunk_bytes else 0
    return machine.into.copy_us(bytes_in) + machine.out.copy_us(bytes_out) + chunks * faults.fault_us


def _moved_bytes(trace: Trace, touch: Touch, frame_bytes: int, faults: Faults) -> int:
    size = trace.storages[touch.storage].size_bytes
    if touch.draws:
        if not frame_bytes:
            return touch.draws * touch.row_bytes
        chunk = max(_ROW_CHUNK, touch.row_bytes)
        return int(expected_chunks(max(size // chunk, 1), touch.draws) * chunk)
    sweeps = touch.sweeps or faults.sweeps
    return size + max(sweeps - 1, 0) * max(size - frame_bytes, 0)

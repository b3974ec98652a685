"""From a recording with storages of device meta to a trace, timed as an accelerator would run it.

Either it has those alone, or, of a script that ran without values, the storages of the script's real tensors as well:
each is one with the ghosts that stand for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from memfit.ir import Op, Trace, align_up
from memfit.shapes import parse_shapes
from memfit.tracing.build import RawRecording, Roles, Rows
from memfit.tracing.roofline import Accelerator


@dataclass
class Twins:
    """The real tensors of a script that runs without values.

    Attributes:
        real: The block of the real storage that a ghost stands for, by the ghost's block.
        on_a_device: Whether the script names a GPU. Then its data is in other memory, and is counted where an iteration
            makes it, or from its first use with a ghost on.
    """

    real: dict[int, int] = field(default_factory=dict)
    on_a_device: bool = False

    def named(self, roles: Roles) -> Roles:
        """Return `roles` with the real storages of the ghosts in them."""
        sets = (roles.parameters, roles.gradients, roles.optimizer_states)
        parameters, gradients, states = (ids | {self.real.get(block, block) for block in ids} for ids in sets)
        return Roles(parameters, gradients, states, roles.are_of_modules)


def with_real(raw: RawRecording, twins: Twins, first: int) -> RawRecording:
    """Return the recording with each real storage and its ghosts as one, without what lived inside an op on ghosts.

    It lives from the birth of the first of them to the death of the last. `first` is the iteration's first op.
    """
    kept_ticks = ~(_scratch(raw.ticks) & _among_ghosts(raw))
    begin = int(raw.ops["first_tick"][first]) if first < len(raw.ops) else len(raw.ticks)
    hidden = _older(raw, begin) if twins.on_a_device else np.empty(0, np.int64)
    apart = set(hidden.tolist())
    real = {ghost: block for ghost, block in twins.real.items() if block not in apart}
    before, alive = _once(raw.before, real, hidden)
    kept_ticks &= ~np.isin(raw.ticks["block"], hidden)
    ticks = _renamed(raw.ticks, real)
    for row in np.flatnonzero(kept_ticks).tolist():
        block, born = int(ticks["block"][row]), ticks["bytes"][row] > 0
        alive[block] = max(alive[block] + (1 if born else -1), 0)
        kept_ticks[row] = alive[block] == (1 if born else 0)
    accesses = raw.accesses[~np.isin(raw.accesses["block"], hidden)]
    return replace(_without(raw, kept_ticks, ticks), before=before, accesses=_renamed(accesses, real))


def _among_ghosts(raw: RawRecording) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which ticks are in ops that use ghosts or make them."""
    used = raw.accesses["op"][np.isin(raw.accesses["block"], raw.ghosts)]
    ops = raw.ticks["ops_begun"] - 1
    made = ops[np.isin(raw.ticks["block"], raw.ghosts)]
    inside: Rows = raw.ticks["inside_op"] != 0
    return np.isin(ops, np.union1d(used, made)) & inside


def _older(raw: RawRecording, begin: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the real blocks that were made before tick `begin`."""
    made = np.concatenate([raw.before["block"], raw.ticks["block"][:begin]])
    return np.unique(made[~np.isin(made, raw.ghosts)])


def _once(before: Rows, real: dict[int, int], hidden: np.ndarray[tuple[int], np.dtype[np.int64]]
          ) -> tuple[Rows, Counter[int]]:  # fmt: skip
    """Return each storage that was alive before once, the real one rather than a ghost, and how many stood for it."""
    before = before[~np.isin(before["block"], hidden)]
    own = ~np.isin(before["block"], list(real))
    before = _renamed(np.concatenate([before[own], before[~own]]), real)
    _, firsts = np.unique(before["block"], return_index=True)
    return before[np.sort(firsts)], Counter(before["block"].tolist())


def _renamed(rows: Rows, real: dict[int, int]) -> Rows:
    rows = rows.copy()
    rows["block"] = [real.get(block, block) for block in rows["block"].tolist()]
    return rows


def only_ghosts(raw: RawRecording) -> RawRecording:
    """Return the recording without memory of the host, and without what lived inside a single op.

    On meta that is not a kernel's scratch: it belongs to the rule, often in Python, that finds out the output's shape.
    """
    kept_ticks = np.isin(raw.ticks["block"], raw.ghosts) & ~_scratch(raw.ticks)
    return replace(
        _without(raw, kept_ticks, raw.ticks),
        before=raw.before[np.isin(raw.before["block"], raw.ghosts)],
        accesses=raw.accesses[np.isin(raw.accesses["block"], raw.ghosts)],
        pins=raw.pins[:0],  # what has no bytes has no address either
    )


def _without(raw: RawRecording, kept: Rows, ticks: Rows) -> RawRecording:
    """Return the recording with those of `ticks` alone that are kept."""
    before_tick = np.concatenate([[0], np.cumsum(kept)])
    ops = raw.ops.copy()
    ops["first_tick"] = before_tick[ops["first_tick"]]
    return replace(raw, ops=ops, ticks=ticks[kept])


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

"""A timeline in the trace event format that chrome://tracing and Perfetto show.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memfit.ir import Direction, Plan, Timeline, Trace

_COMPUTE, _OUT, _IN = 1, 2, 3
_ROWS = {_COMPUTE: "computation", _OUT: "copies out", _IN: "copies in"}


def to_chrome(trace: Trace, plan: Plan, timelines: Mapping[str, Timeline]) -> str:
    """Return iterations by name as JSON, one process each, to be looked at one above the other.

    Each has a row of ops and waits, a row of copies each way, and a counter of bytes.
    """
    events: list[dict[str, Any]] = []
    for number, (name, timeline) in enumerate(timelines.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events += ({**event, "pid": number} for event in _events(trace, plan, timeline))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(trace: Trace, plan: Plan, timeline: Timeline) -> list[dict[str, Any]]:
    events = [*_rows(), *_ops(trace, timeline), *_waits(trace, plan, timeline), *_copies(trace, plan, timeline)]
    return [*events, *_bytes(timeline)]


def _rows() -> Iterator[dict[str, Any]]:
    for row, name in _ROWS.items():
        yield {"ph": "M", "tid": row, "name": "thread_name", "args": {"name": name}}


def _span(row: int, name: str, start_us: float, end_us: float, **args: Any) -> dict[str, Any]:
    duration_us = max(end_us - start_us, 0.0)
    return {"ph": "X", "tid": row, "name": name, "ts": start_us, "dur": duration_us, "args": args}


def _ops(trace: Trace, timeline: Timeline) -> Iterator[dict[str, Any]]:
    for index, op in enumerate(trace.ops):
        start_us, end_us = timeline.start_us[index], timeline.end_us[index]
        yield _span(_COMPUTE, op.name, start_us, end_us, op=index, phase=op.phase.value, source=op.source)


def _waits(trace: Trace, plan: Plan, timeline: Timeline) -> Iterator[dict[str, Any]]:
    # Waits of one op follow on each other, and the last ends when the op begins.
    until: dict[int, float] = {}
    for stall in reversed(timeline.stalls):
        end_us = until.get(stall.op, timeline.start_us[stall.op])
        until[stall.op] = end_us - stall.duration_us
        storage = plan.swaps[stall.swap].storage
        yield _span(_COMPUTE, f"wait for storage {storage} ({stall.direction})", until[stall.op], end_us, op=stall.op)


def _copies(trace: Trace, plan: Plan, timeline: Timeline) -> Iterator[dict[str, Any]]:
    for copy in timeline.copies:
        row = _OUT if copy.direction is Direction.OUT else _IN
        storage = plan.swaps[copy.swap].storage
        source = trace.storages[storage].source
        yield _span(row, f"storage {storage}", copy.start_us, copy.end_us, bytes=copy.size_bytes, source=source)


def _bytes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for start_us, resident in zip(timeline.start_us, timeline.resident_bytes, strict=True):
        yield {"ph": "C", "name": "resident", "ts": start_us, "args": {"bytes": resident}}

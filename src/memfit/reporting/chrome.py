"""A timeline in the trace event format that chrome://tracing and Perfetto show.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memfit.ir import Direction, Plan, Timeline, Trace, Transformed

_COMPUTE, _OUT, _IN = 1, 2, 3
_ROWS = {_COMPUTE: "computation", _OUT: "copies out", _IN: "copies in"}


def to_chrome(trace: Trace, plan: Plan, timelines: Mapping[str, Timeline], made: Transformed | None = None) -> str:
    """Return iterations by name as JSON, one process each, to be looked at one above the other.

    Each has a row of ops and waits, a row of copies each way, and a counter of bytes. If ops of `trace` run again,
    `made` says which: they are named so, and all numbers are those of the trace that was recorded.
    """
    shown = _Shown(trace, plan, made or Transformed.unchanged(trace))
    events: list[dict[str, Any]] = []
    for number, (name, timeline) in enumerate(timelines.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events += ({**event, "pid": number} for event in shown.events(timeline))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


@dataclass(frozen=True, slots=True)
class _Shown:
    trace: Trace
    plan: Plan
    made: Transformed

    def events(self, timeline: Timeline) -> list[dict[str, Any]]:
        spans = [*self._ops(timeline), *self._waits(timeline), *self._copies(timeline)]
        return [*_rows(), *spans, *_bytes(timeline)]

    def _ops(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        for index, op in enumerate(self.trace.ops):
            name = f"{op.name} (again)" if self.made.runs_again[index] else op.name
            number, phase = self.made.op_of[index], op.phase.value
            start_us, end_us = timeline.start_us[index], timeline.end_us[index]
            yield _span(_COMPUTE, name, start_us, end_us, op=number, phase=phase, source=op.source)

    def _waits(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        # Waits of one op follow on each other, and the last ends when the op begins.
        until: dict[int, float] = {}
        for stall in reversed(timeline.stalls):
            end_us = until.get(stall.op, timeline.start_us[stall.op])
            until[stall.op] = end_us - stall.duration_us
            name = f"wait for storage {self._storage(stall.swap)} ({stall.direction})"
            yield _span(_COMPUTE, name, until[stall.op], end_us, op=self.made.op_of[stall.op])

    def _copies(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        for copy in timeline.copies:
            row = _OUT if copy.direction is Direction.OUT else _IN
            source = self.trace.storages[self.plan.swaps[copy.swap].storage].source
            name = f"storage {self._storage(copy.swap)}"
            yield _span(row, name, copy.start_us, copy.end_us, bytes=copy.size_bytes, source=source)

    def _storage(self, swap: int) -> int:
        return self.made.storage_of[self.plan.swaps[swap].storage]


def _rows() -> Iterator[dict[str, Any]]:
    for row, name in _ROWS.items():
        yield {"ph": "M", "tid": row, "name": "thread_name", "args": {"name": name}}


def _span(row: int, name: str, start_us: float, end_us: float, **args: Any) -> dict[str, Any]:
    duration_us = max(end_us - start_us, 0.0)
    return {"ph": "X", "tid": row, "name": name, "ts": start_us, "dur": duration_us, "args": args}


def _bytes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for start_us, resident in zip(timeline.start_us, timeline.resident_bytes, strict=True):
        yield {"ph": "C", "name": "resident", "ts": start_us, "args": {"bytes": resident}}

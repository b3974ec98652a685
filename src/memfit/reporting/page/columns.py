"""The page's data as one JSON object of columns, in which each text stands once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memfit.ir import Direction, Phase
from memfit.reporting.names import short_line
from memfit.reporting.page.data import Lane, Page

_PHASES = tuple(phase.value for phase in Phase)


@dataclass
class _Texts:
    """Texts by number."""

    texts: list[str] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        """Return the number of a text."""
        found = self.number.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found


def columns_of(page: Page) -> dict[str, Any]:
    """Return the page's columns; bytes and ops are integers, times microseconds."""
    texts = _Texts()
    head = page.head
    return {
        "ops": _ops(page, texts),
        "storages": _storages(page, texts),
        "live": {name: rows.tolist() for name, rows in page.live.items()},
        "arena": None if page.arena is None else page.arena.tolist(),
        "boxes": {
            "storage": list(page.boxes.storage), "begin": list(page.boxes.begin), "end": list(page.boxes.end),
            "offset": list(page.boxes.offset), "footprint": page.boxes.footprint_bytes,
        },
        "fates": _fates(page),
        "gaps": {
            storage: [gap.after, gap.before, round(gap.duration_us, 1), texts.add(gap.why)]
            for storage, gap in page.gaps.items()
        },
        "lanes": [_lane(page, lane) for lane in page.lanes],
        "whatIf": None if page.what_if is None else {
            "budgets": list(page.what_if.budgets),
            "added": [None if added == float("inf") else added for added in page.what_if.added],
        },
        "against": None if page.changes is None else {
            "name": page.changes.name, "there": list(page.changes.curve), "here": list(page.changes.own_curve),
        },
        "budget": head.budget_bytes, "floor": head.floor_bytes, "floorOp": head.floor_op.index, "peak": head.peak_bytes,
        "texts": texts.texts,
    }  # fmt: skip


def _ops(page: Page, texts: _Texts) -> dict[str, Any]:
    ops = page.trace.ops
    return {
        "name": [texts.add(op.name) for op in ops],
        "source": [texts.add(short_line(op.source)) for op in ops],
        "phase": [_PHASES.index(op.phase.value) for op in ops],
        "us": [round(op.duration_us, 1) for op in ops],
    }


def _storages(page: Page, texts: _Texts) -> dict[str, Any]:
    storages = page.trace.storages
    return {
        "size": [each.size_bytes for each in storages],
        "category": [texts.add(each.category.value) for each in storages],
        "alloc": [each.alloc for each in storages],
        "free": [each.free for each in storages],
        "source": [texts.add(short_line(each.source)) for each in storages],
        "module": [texts.add(each.module) for each in storages],
    }


def _fates(page: Page) -> dict[str, Any]:
    """Return absences by storage: swaps as [out after, back before, returns], drops as [after, made before, ops].

    The latter are the number of ops that run again: none for what is dropped for good, and freed before that op.
    """
    swapped: dict[int, list[list[int]]] = {}
    dropped: dict[int, list[list[int]]] = {}
    if page.plan is not None and page.lanes:
        made = page.lanes[0].made
        last = len(made.op_of)
        for swap in page.plan.swaps:
            ends = [made.op_of[op % last] for op in (swap.out_after, swap.in_before)]
            swapped.setdefault(made.storage_of[swap.storage], []).append([*ends, int(swap.returns)])
        for one in page.plan.recomputes:
            dropped.setdefault(one.storage, []).append([one.after, one.before, len(one.ops) * one.returns])
    return {"swapped": swapped, "dropped": dropped}


def _lane(page: Page, lane: Lane) -> dict[str, Any]:
    assert page.plan is not None
    timeline, made = lane.timeline, lane.made
    copies, swaps = timeline.copies, page.plan.swaps
    return {
        "title": lane.title,
        "us": round(timeline.iteration_us, 1),
        "op": list(made.op_of), "again": [int(again) for again in made.runs_again],
        "start": [round(us, 1) for us in timeline.start_us], "end": [round(us, 1) for us in timeline.end_us],
        "copies": {
            "storage": [made.storage_of[swaps[each.swap].storage] for each in copies],
            "out": [int(each.direction is Direction.OUT) for each in copies],
            "size": [each.size_bytes for each in copies],
            "start": [round(each.start_us, 1) for each in copies], "end": [round(each.end_us, 1) for each in copies],
        },
        "stalls": {"op": [each.op for each in timeline.stalls],
                   "us": [round(each.duration_us, 1) for each in timeline.stalls]},
    }  # fmt: skip

"""The cells of a part: each run once, within its time and the part's, and kept in a JSON file as soon as it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.result import Row, write_json
from benchmarks.gpu.cells import Outcome, Request, run_cell

VERSION = 1
LEAST_S = 4.0  # a cell is not begun with less time left
# A cell that was tried is not tried again unless asked; one for which there was no time is.
_TRIED = ("ok", "error", "timeout", "crash")


@dataclass(frozen=True)
class Options:
    """How everything is run. `models`, `percents` of their peaks, and `modes`: None is each part's own choice."""

    out: Path
    device: str = "cuda"
    quick: bool = False
    resume: bool = False
    retry: bool = False
    start: str = "fork"
    models: tuple[str, ...] | None = None
    percents: tuple[int, ...] | None = None
    modes: tuple[str, ...] | None = None
    engine_error: str = ""  # why cells that need memfit cannot run

    @property
    def settings(self) -> Row:
        """What results must have in common to stand in one table."""
        return {"device": self.device, "quick": self.quick}


@dataclass
class Bench:
    """One part under way. `deadline` is a moment of the monotonic clock, `about` what the file says of the machine."""

    name: str
    options: Options
    deadline: float
    about: Row = field(default_factory=dict)
    run_cell: Callable[[Request, float, str], Outcome] = run_cell
    cells: dict[str, Outcome] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.options.resume:
            self.cells = self.read(self.name)

    def read(self, name: str) -> dict[str, Outcome]:
        """Return the cells that some part measured in the same way, as far as it came."""
        data = read(self.options.out / f"{name}.json")
        alike = data.get("settings") == self.options.settings and data.get("version") == VERSION
        return dict(data["cells"]) if alike else {}

    def run(self, key: str, call: str, limit_s: float, memfit: bool = False, **request: Any) -> Row | None:
        """Run one cell unless it has been; return its result, or None if it has none."""
        if not self.tried(key):
            left = self.deadline - time.monotonic()
            if left < LEAST_S:
                self.skipped.append(key)
            elif memfit and self.options.engine_error:
                self.cells[key] = {"status": "error", "error": self.options.engine_error, "result": None}
            else:
                request = {"call": call, **self.options.settings, "limit_s": min(limit_s, left)} | request
                self._run(key, request, limit_s)
            self.save()
        return measured(self.cells).get(key)

    def _run(self, key: str, request: Request, limit_s: float) -> None:
        outcome = self.cells[key] = self.run_cell(request, request["limit_s"], self.options.start)
        if outcome["status"] == "timeout" and request["limit_s"] < limit_s:
            outcome["status"] = "cut"  # by the part's deadline: to be run again when there is time
            self.skipped.append(key)
        why = f" - {outcome['error'][:300]}" if outcome.get("error") else ""
        print(f"  {key}: {outcome['status']} in {outcome['seconds']:.1f} s{why}")

    def tried(self, key: str) -> bool:
        """Whether the cell need not be run: it has a result, or failed and is not to be tried again."""
        return self.cells.get(key, {}).get("status") in (("ok",) if self.options.retry else _TRIED)

    def save(self, complete: bool = False) -> None:
        """Write the part's file, whole or not at all."""
        data = {"version": VERSION, "complete": complete, "settings": self.options.settings, "about": self.about,
                "cells": self.cells}  # fmt: skip
        write_json(self.options.out / f"{self.name}.json", data)


def measured(cells: Mapping[str, Outcome]) -> Row:
    """Return the results of the cells that came to their end, by key."""
    return {key: cell["result"] for key, cell in cells.items() if cell.get("status") == "ok"}


def read(path: Path) -> Row:
    """Return a file's data; nothing when it is not there, or no whole JSON."""
    try:
        data: Row = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data

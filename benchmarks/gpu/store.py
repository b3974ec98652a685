"""A part's results: one JSON file, written anew after each cell, so that what is measured is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.result import write_json

VERSION = 1
# A cell that was tried is not tried again unless asked; one for which there was no time is.
_TRIED = ("ok", "error", "timeout", "crash")


class Results:
    """The cells of one part by key, in the file `path`."""

    def __init__(self, path: Path, settings: Mapping[str, Any], resume: bool = False) -> None:
        self.path = path
        self.settings = dict(settings)
        self.cells: dict[str, dict[str, Any]] = {}
        self.about: dict[str, Any] = {}
        self.complete = False
        if resume:
            self._load()

    def _load(self) -> None:
        """Take over what a former run measured in the same way."""
        data = read(self.path)
        if data is None or data.get("settings") != self.settings or data.get("version") != VERSION:
            return
        self.cells, self.about, self.complete = data["cells"], data.get("about", {}), data["complete"]

    def tried(self, key: str, retry: bool = False) -> bool:
        """Whether the cell need not be run: it has a result, or failed and is not to be tried again."""
        status = self.cells.get(key, {}).get("status")
        return status == "ok" if retry else status in _TRIED

    def put(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Keep a cell's outcome, in the file too."""
        self.cells[key] = dict(outcome)
        self.save()

    def result(self, key: str) -> dict[str, Any] | None:
        """Return what the cell measured; None if it has not, or not to its end."""
        cell = self.cells.get(key, {})
        found: dict[str, Any] | None = cell.get("result") if cell.get("status") == "ok" else None
        return found

    def save(self) -> None:
        """Write the file, whole or not at all."""
        data = {"version": VERSION, "complete": self.complete, "settings": self.settings, "about": self.about,
                "cells": self.cells}  # fmt: skip
        write_json(self.path, data)


def measured(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of the cells that came to their end, by key."""
    return {key: cell["result"] for key, cell in cells.items() if cell["status"] == "ok"}


def read(path: Path) -> dict[str, Any] | None:
    """Return a file's data; None when it is not there, or no whole JSON."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def folder_name(device: str) -> str:
    """Return a device's short name for its folder: "NVIDIA H200" is h200."""
    words = [word for word in device.lower().split() if word not in ("nvidia", "amd", "tesla", "geforce")]
    return "-".join("".join(c if c.isalnum() or c == "-" else "-" for c in word) for word in words) or "unknown"

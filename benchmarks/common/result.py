"""What a benchmark found: figures for its JSON file, tables for the reader and for the documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.common.paths import ROOT

Row = dict[str, Any]  # figures of one case, as the JSON has them
GIB = 1 << 30


class Table(NamedTuple):
    """Cells are printed as `str` gives them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Result:
    """`figures` go into the file `name` as JSON; without a name nothing is written. `exit_code` is the command's."""

    name: str
    figures: object
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    exit_code: int = 0

    def report(self, folder: Path) -> None:
        """Print the tables and the notes, and write the figures into `folder`."""
        for table in self.tables:
            shown = RichTable(title=table.title)
            for column in table.columns:
                shown.add_column(column, justify="left" if column == table.columns[0] else "right")
            for row in table.rows:
                shown.add_row(*(str(cell) for cell in row))
            Console(width=200).print(shown)
        for note in self.notes:
            print(note)
        if self.name:
            path = folder / f"{self.name}.json"
            write_json(path, self.figures)
            print(f"written to {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def write_json(path: Path, figures: object) -> None:
    """Write the file whole or not at all: the process may be killed at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(figures, indent=1) + "\n")
    beside.replace(path)


def grouped(rows: Iterable[Row], key: str = "example") -> dict[str, list[Row]]:
    """Return the rows by what they have at `key`, in the order of their first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def mb(size_bytes: float) -> str:
    """Return bytes in units of 10^6, with three digits."""
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 99.5e6 else f"{size_bytes / 1e6:.1f} MB"


def gib(size_bytes: float | None) -> str:
    """Return a size for a table: GiB to two digits; MiB for what would have none."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / GIB:.2f}" if abs(size_bytes) >= GIB / 20 else f"{size_bytes / (1 << 20):.1f} MiB"

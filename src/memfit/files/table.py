"""Comma-separated text, read row by row; every mismatch names the line and the field."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from memfit.arrays import INT64_MAX
from memfit.errors import InputError
from memfit.files.document import read_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its cells by column name."""

    path: str
    line: int
    cells: dict[str, str]

    def fail(self, column: str, reason: str, remedy: str = "correct that line") -> NoReturn:
        """Raise InputError for the cell in `column`."""
        raise InputError(f"{self.path}, line {self.line}: {column} {reason}", remedy=remedy)

    def integer(self, column: str, low: int = -INT64_MAX, high: int = INT64_MAX) -> int:
        """Return the decimal integer in `column`, which must lie in [low, high]."""
        text = self.cells[column]
        # int() itself takes "1_000" and digits of other scripts.
        if not (text.removeprefix("-").isdigit() and text.isascii() and len(text) < 40):
            self.fail(column, f"is not an integer: {text!r}")
        value = int(text)
        if not low <= value <= high:
            self.fail(column, f"is {value}, outside [{low}, {high}]")
        return value

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Return the word in `column`, which must be one of `choices`."""
        text = self.cells[column]
        if text not in choices:
            self.fail(column, f"is {text!r}, not one of {', '.join(choices)}")
        return text


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """Return the number and the stripped cells of every line that is not empty.

    Raises InputError if the file cannot be read or is not text.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text", why=str(error), remedy="pass a CSV file") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}", remedy="correct that line") from error
    return [(number, cells) for number, cells in lines if any(cells)]


def rows(path: str | os.PathLike[str], header: Sequence[str], lines: Iterable[tuple[int, list[str]]]) -> Iterator[Row]:
    """Yield `lines` as rows with the columns `header`; raises InputError for one with more or fewer cells."""
    for number, cells in lines:
        if len(cells) != len(header):
            raise InputError(
                f"{path}, line {number} has {len(cells)} fields instead of {len(header)}",
                why=f"a row is {', '.join(header)}",
                remedy="the file is cut short or damaged: write it again, or correct that line",
            )
        yield Row(str(path), number, dict(zip(header, cells, strict=True)))

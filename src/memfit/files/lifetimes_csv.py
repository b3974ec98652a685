"""Lifetimes <-> CSV: id,lower,upper,size and, once placed, offset, as google/minimalloc writes them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from memfit.arrays import Int64Array
from memfit.errors import InputError
from memfit.events import NamedLifetimes, lifetimes_of_rows
from memfit.files.document import write_text
from memfit.files.table import Row, read_lines, rows

_COLUMNS = ("id", "lower", "upper", "size")
_OFFSET = "offset"


@dataclass(frozen=True, slots=True, eq=False)
class LifetimeTable:
    """Lifetimes, and the place (bytes) of each if the file has one."""

    lifetimes: NamedLifetimes
    offset: Int64Array | None


def load_lifetimes_csv(path: str | os.PathLike[str]) -> LifetimeTable:
    """Read lifetimes from a CSV file.

    Arguments:
        path: Rows with a header, in any order of columns, or without one, in the order id,lower,upper,size,offset.

    Returns:
        The lifetimes, with their offsets if there are any.

    Raises:
        InputError: The file is malformed. The message names the line, the field and the reason.
    """
    lines = read_lines(path)
    header, body = _header(path, lines)
    table = [_checked(row) for row in rows(path, header, body)]
    _check_ids(table)
    lifetimes = lifetimes_of_rows(
        (r.cells["id"], r.integer("lower"), r.integer("upper"), r.integer("size")) for r in table
    )
    if _OFFSET not in header:
        return LifetimeTable(lifetimes, None)
    return LifetimeTable(lifetimes, np.array([r.integer(_OFFSET, 0) for r in table], dtype=np.int64))


def save_lifetimes_csv(path: str | os.PathLike[str], lifetimes: NamedLifetimes, offset: Iterable[int]) -> None:
    """Write the rows of `lifetimes`, in their order, with the place of each (bytes).

    Raises:
        InputError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, _OFFSET))
    writer.writerows(zip(lifetimes.ids, *_lists(lifetimes), map(int, offset), strict=True))
    write_text(path, text.getvalue())


def _lists(lifetimes: NamedLifetimes) -> Iterator[list[int]]:
    return (column.tolist() for column in (lifetimes.lower, lifetimes.upper, lifetimes.size))


def _header(
    path: str | os.PathLike[str], lines: list[tuple[int, list[str]]]
) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """Return the column names and the lines of the body."""
    if not lines:
        raise InputError(f"{path} is empty", remedy="pass a table of lifetimes: id,lower,upper,size")
    number, first = lines[0]
    names = tuple(name.lower() for name in first)
    if not set(names).intersection((*_COLUMNS[1:], _OFFSET)):
        return ((*_COLUMNS, _OFFSET) if len(first) > len(_COLUMNS) else _COLUMNS), lines
    known = (*_COLUMNS, _OFFSET)
    for wrong, reason in (
        ([name for name in _COLUMNS if name not in names], "is missing from the header"),
        ([name for name in names if name not in known], "is a column memfit does not know"),
        ([name for name in names if names.count(name) > 1], "is in the header more than once"),
    ):
        if wrong:
            what = f"{path}, line {number}: {wrong[0]!r} {reason}"
            raise InputError(what, why=f"columns are {', '.join(known)}", remedy="rename or remove columns")
    return names, lines[1:]


def _checked(row: Row) -> Row:
    if not row.cells["id"]:
        row.fail("id", "is empty")
    if row.integer("upper") <= (lower := row.integer("lower")):
        row.fail("upper", f"is {row.cells['upper']}, not after lower ({lower}): lifetimes are half-open [lower, upper)")
    row.integer("size", 0)
    return row


def _check_ids(table: list[Row]) -> None:
    lines: dict[str, int] = {}
    for row in table:
        name = row.cells["id"]
        if name in lines:
            row.fail("id", f"is {name!r}, which line {lines[name]} has already")
        lines[name] = row.line

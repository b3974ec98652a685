"""The text of the SmartPool paper's published traces (arXiv 1903.06631): mallocs, and accesses.

Time 0 is before the first row and time k + 1 that of row k; what is not freed lives until after the last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from memfit.errors import InputError
from memfit.events import NamedLifetimes, lifetimes_of_rows
from memfit.files.table import Row, read_lines, rows

MALLOC_HEADER = ("action", "address", "bytes")
ACCESS_HEADER = ("index", "action", "block", "bytes", "time_ns")

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")
_ACTIONS = ("malloc", "free", "read", "mutable", "layer")


@dataclass(frozen=True, slots=True)
class PaperAccess:
    """One event on a block, at `time_ns` (nanoseconds) since the first.

    `action` is malloc, free, read, mutable (a write) or layer (the end of a layer's forward).
    """

    action: str
    block: int
    size_bytes: int
    time_ns: int


def load_paper_mallocs(path: str | os.PathLike[str]) -> NamedLifetimes:
    """Read `action,address,bytes` rows of mallocs and frees (a free has no bytes).

    Arguments:
        path: Rows of `action,address,bytes`; a free has no bytes.

    Returns:
        The lifetimes of the blocks.

    Raises:
        InputError: The file is malformed. The message names the line, the field and the reason.
    """
    alive = _Alive()
    for row in _rows(path, MALLOC_HEADER):
        block = _address(row, "address")
        if row.choice("action", ("malloc", "free")) == "malloc":
            alive.malloc(row, "address", block, row.integer("bytes", 0))
        elif row.cells["bytes"]:
            row.fail("bytes", "is given for a free")
        else:
            alive.free(row, "address", block)
    return alive.lifetimes()


def load_paper_accesses(path: str | os.PathLike[str]) -> tuple[PaperAccess, ...]:
    """Read the accesses that the authors of AutoSwap published (arXiv 1903.06631).

    Arguments:
        path: Rows of `index,action,block,bytes,time_ns`.

    Returns:
        The accesses, in order.

    Raises:
        InputError: The file is malformed. The message names the line, the field and the reason.
    """
    return tuple(access for _, access in _accesses(path))


def load_paper_access_lifetimes(path: str | os.PathLike[str]) -> NamedLifetimes:
    """Read the lifetimes of the blocks in such a file; one not allocated in it is alive from before.

    What is alive but never accessed is not in the file, so its bytes are not counted. Raises InputError as
    `load_paper_accesses` does, and for an allocation of what is alive.
    """
    accesses = list(_accesses(path))
    alive = _Alive()
    for access in _first_seen(accesses):
        if access.action != "malloc":
            alive.born_before(access.block, access.size_bytes)
    for row, access in accesses:
        if access.action == "malloc":
            alive.malloc(row, "block", access.block, access.size_bytes)
        elif access.action == "free":
            alive.free(row, "block", access.block)
        else:
            alive.tick()
    return alive.lifetimes()


def _accesses(path: str | os.PathLike[str]) -> Iterator[tuple[Row, PaperAccess]]:
    index, time_ns = 0, 0
    for row in _rows(path, ACCESS_HEADER):
        if row.integer("index", 0) != index:
            row.fail("index", f"is {row.cells['index']}, not {index}: rows are missing or out of order")
        action = row.choice("action", _ACTIONS)
        time_ns, index = row.integer("time_ns", time_ns), index + 1
        yield row, PaperAccess(action, _address(row, "block"), row.integer("bytes", 0), time_ns)


def _first_seen(accesses: list[tuple[Row, PaperAccess]]) -> Iterable[PaperAccess]:
    first: dict[int, PaperAccess] = {}
    for _, access in accesses:
        first.setdefault(access.block, access)
    return first.values()


def _rows(path: str | os.PathLike[str], header: tuple[str, ...]) -> Iterator[Row]:
    lines = read_lines(path)
    found = tuple(lines[0][1]) if lines else ()
    if found != header:
        why = f"its first line is {','.join(found)!r}, not {','.join(header)!r}"
        what = f"{path} is not a trace of the SmartPool paper"
        raise InputError(what, why=why, remedy=f"pass a file of {', '.join(header)}")
    return rows(path, header, lines[1:])


def _address(row: Row, column: str) -> int:
    if not _ADDRESS.fullmatch(row.cells[column]):
        row.fail(column, f"is not an address such as 0x7f00: {row.cells[column]!r}")
    return int(row.cells[column], 16)


class _Alive:
    """Follows which address is which lifetime; each call but `born_before` is one row later."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []  # lower, upper (-1 while alive), size
        self._row_of: dict[int, int] = {}
        self._now = 0

    def born_before(self, block: int, size_bytes: int) -> None:
        self._begin(block, size_bytes)

    def malloc(self, row: Row, column: str, block: int, size_bytes: int) -> None:
        self._now += 1
        if block in self._row_of:
            row.fail(column, f"is {block:#x}, which is allocated already", "a free is missing above: record it again")
        self._begin(block, size_bytes)

    def free(self, row: Row, column: str, block: int) -> None:
        self._now += 1
        if block not in self._row_of:
            row.fail(column, f"is {block:#x}, which is not allocated", "a malloc is missing above: record it again")
        self._rows[self._row_of.pop(block)][1] = self._now

    def tick(self) -> None:
        self._now += 1

    def lifetimes(self) -> NamedLifetimes:
        end = self._now + 1
        return lifetimes_of_rows(
            (str(i), lower, end if upper < 0 else upper, size) for i, (lower, upper, size) in enumerate(self._rows)
        )

    def _begin(self, block: int, size_bytes: int) -> None:
        self._row_of[block] = len(self._rows)
        self._rows.append([self._now, -1, size_bytes])

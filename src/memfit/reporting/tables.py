"""Tables for a terminal, and bytes as they are written in them."""

from __future__ import annotations

from typing import Literal

from rich.table import Table
from rich.text import Text

from memfit.units import format_bytes

_NUMERIC = (
    "bytes",
    "share",
    "storages",
    "unused for",
    "footprint",
    "over the peak",
    "fragmentation",
    "driver allocations",
    "us a call",
)


def new_table(title: str, *columns: str) -> Table:
    """Return a table without rows; columns of numbers are aligned to the right."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMERIC else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text: names of files may hold what rich would read as markup."""
    table.add_row(*(Text(cell) for cell in cells))


def exact_bytes(size_bytes: int) -> str:
    """Return bytes for a person and, in brackets, to the last one."""
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"

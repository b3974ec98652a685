"""Fills the table of statistics in docs/guide.md from native/engine/stats.h, where each is named and explained.

Usage: python -m tools.make_statistics
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.pages import with_part

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide.md"
HEADER = ROOT / "native" / "engine" / "stats.h"
BEGIN, END = "<!-- STATISTICS -->", "<!-- END -->"


def statistics() -> Iterator[tuple[str, str]]:
    """Yield the name and the meaning of each."""
    text = HEADER.read_text().replace("\\\n", "")
    for match in re.finditer(r'X\(\w+, (\w+),\s+"(.*?)"\)(?=\s+X\(|\s*$)', text, re.MULTILINE):
        yield match[1], match[2]


def unit(name: str) -> str:
    """Return the unit of a statistic; an empty text if its name says it."""
    return "bytes" if "bytes" in name else "ns" if name.endswith("_ns") else ""


def page() -> str:
    """Return the guide with the table as it should be."""
    rows = [f"| `{name}` | {unit(name)} | {meaning} |" for name, meaning in statistics()]
    table = "\n".join(["| field | unit | meaning |", "| --- | --- | --- |", *rows])
    return with_part(GUIDE.read_text(), BEGIN, END, table)


if __name__ == "__main__":
    GUIDE.write_text(page())

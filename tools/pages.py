"""A part of a page, between two marks, made anew: shared by the makers of documents."""

from __future__ import annotations


def with_part(text: str, begin: str, end: str, part: str) -> str:
    """Return `text` with `part` between the marks `begin` and `end`, and an empty line on both sides of it."""
    before, _, rest = text.partition(begin)
    block = f"{begin}\n\n{part}\n\n" if part else f"{begin}\n"
    return before + block + rest[rest.index(end) :]

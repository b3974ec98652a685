"""Cells by their numbers, as IPython's own tracebacks have them: In[3], not the name of the file it has compiled."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from memfit.ir import Trace


def renumber(shell: Any) -> None:
    """Give the cell that a magic has run the number of the cell that has the magic: IPython takes the next one's."""
    numbers, ours = _numbers(shell), shell.displayhook.prompt_count
    for name, number in numbers.items():
        if number > ours:
            numbers[name] = ours


def with_cells(text: str, shell: Any) -> str:
    """Return `text` with In[3] in the place of the third cell's file."""
    for name, number in _numbers(shell).items():
        for file in (name, os.path.relpath(name)):  # traces name files from the working folder on
            text = text.replace(f"{file}:", f"In[{number}]:")
    return text


def trace_with_cells(trace: Trace, shell: Any) -> Trace:
    """Return `trace` with cells by their numbers in the places of their files."""
    sources = {op.source for op in trace.ops} | {storage.source for storage in trace.storages}
    named = {source: with_cells(source, shell) for source in sources}
    return replace(
        trace,
        ops=tuple(replace(op, source=named[op.source]) for op in trace.ops),
        storages=tuple(replace(storage, source=named[storage.source]) for storage in trace.storages),
    )


def _numbers(shell: Any) -> dict[str, int]:
    """Return the number of the cell that each name of a file stands for."""
    found: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    return found

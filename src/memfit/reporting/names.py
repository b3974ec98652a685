"""Ops, storages and lines of code, as reports name them."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An op by its place in the iteration."""

    index: int
    name: str
    phase: str
    source: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One storage, by what it holds and where it was allocated."""

    storage: int
    category: str
    size_bytes: int
    source: str


def full_op(op: OpInfo) -> str:
    """Return an op with its phase and its line."""
    return f"{brief_op(op)} ({op.phase}, {short_line(op.source)})"


def brief_op(op: OpInfo) -> str:
    """Return an op by its index and name."""
    return f"op {op.index} {op.name}"


def tensor_text(tensor: TensorInfo) -> str:
    """Return a storage by what it holds, its id and its line."""
    return f"{tensor.category} {tensor.storage} ({short_line(tensor.source)})"


def short_line(source: str) -> str:
    """Return a source line with its path as short as it can be told by; `--json` has the whole of it."""
    if not source:
        return "unknown line"
    for folder in (f"{os.getcwd()}/", "site-packages/"):
        if folder in source:
            return source.rpartition(folder)[2]
    parts = source.split("/")
    return source if len(parts) <= 3 else f".../{'/'.join(parts[-2:])}"

"""Patterns that name storages of a trace."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import accumulate

from memfit.ir import Trace
from memfit.planning.lifetimes import births

FORMS = "'#12' (an id), '@layers.3' (a module), 'train.py:40' (a line) or 'conv*' (an op)"
"""What a pattern may be, in words."""


def storages_named(trace: Trace, pattern: str) -> list[int]:
    """Return the storages with bytes that `pattern` names; none if it names nothing.

    Arguments:
        trace: The recorded iteration.
        pattern: "#12", a storage's id; or, with the wildcards *, ? and [...], what allocated it: "@layers.3", a call
            of this module or of one inside it; "train.py:40" or "train.py", a line of the script, whose folders may
            be left out; "aten::mm", "mm" or "conv*", an op.
    """
    if pattern.startswith("#"):
        number = int(pattern[1:]) if pattern[1:].isdecimal() else -1
        return [number] if 0 <= number < len(trace.storages) else []
    sized = [(s, storage) for s, storage in enumerate(trace.storages) if storage.size_bytes]
    if pattern.startswith("@"):
        return [s for s, storage in sized if _is_module(storage.module, pattern[1:])]
    names = {s: trace.ops[op].name for s, op in births(trace).items()}
    return [s for s, storage in sized if _is_line(storage.source, pattern) or _is_op(names.get(s, ""), pattern)]


def _is_module(module: str, pattern: str) -> bool:
    outer = accumulate(module.split("."), lambda path, name: f"{path}.{name}")
    return bool(module) and any(fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}") for path in outer)


def _is_line(source: str, pattern: str) -> bool:
    ways = (pattern, f"*/{pattern}", f"{pattern}:*", f"*/{pattern}:*")
    return bool(source) and any(fnmatchcase(source, way) for way in ways)


def _is_op(name: str, pattern: str) -> bool:
    base = name.rpartition("::")[2]
    ways = (name, name.partition(".")[0], base, base.partition(".")[0])  # with its overload, and without
    return bool(name) and any(fnmatchcase(each, pattern) for each in ways)

"""Plan <-> file: columns of numbers, checked on the way in. That a plan fits a trace, `planning.joint.judged` checks.

The ops of recomputes, of which each has one or more, are one column after the other; `length` says how many are whose.
Version 1 had placements too, which nothing has ever read: a run finds addresses for the storages of its own iterations.
Version 2 had no recomputes, version 4 no maps; in version 5 every dropped storage was made again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from memfit.files.document import Fields, read_document, write_document
from memfit.ir import Map, Plan, Recompute, Swap

_KIND = "plan"
_VERSION = 6
_FIRST_WITH_RECOMPUTES = 3
_FIRST_WITH_MAPS = 5
_SWAP_COLUMNS = ("storage", "size_bytes", "out_after", "free_by", "in_start", "in_before")
_MAP_COLUMNS = ("op", "frame_bytes")
_RECOMPUTE_COLUMNS = ("storage", "after", "before")


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file.

    Arguments:
        plan: The plan.
        path: The file; it is gzipped if its name ends in ".gz".

    Raises:
        InputError: The file cannot be written.
    """
    write_document(path, _KIND, _VERSION, plan_body(plan))


def plan_body(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan, as they are in its file.

    Arguments:
        plan: The plan.

    Returns:
        Plain data.
    """
    return {
        "signature": plan.signature,
        "op_count": plan.op_count,
        "policy": plan.policy,
        "machine": plan.machine,
        "budget_bytes": plan.budget_bytes,
        "footprint_bytes": plan.footprint_bytes,
        "swaps": _columns(plan.swaps, (*_SWAP_COLUMNS, "cyclic", "returns")),
        "recomputes": {
            **_columns(plan.recomputes, (*_RECOMPUTE_COLUMNS, "returns")),
            "length": [len(one.ops) for one in plan.recomputes],
            "ops": [op for one in plan.recomputes for op in one.ops],
        },
        "maps": {
            **_columns(plan.maps, _MAP_COLUMNS),
            "length": [len(one.storages) for one in plan.maps],
            "storages": [storage for one in plan.maps for storage in one.storages],
        },
    }


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a file.

    Arguments:
        path: A file of `save_plan` or `memfit plan`, gzipped or not.

    Returns:
        The plan.

    Raises:
        InputError: The file is malformed. The message names the file, the field and the reason.
    """
    fields = read_document(path, _KIND, _VERSION)
    version = fields.integer("version", 1)
    has = {"has_recomputes": version >= _FIRST_WITH_RECOMPUTES, "has_maps": version >= _FIRST_WITH_MAPS}
    return plan_of_fields(fields, **has)


def plan_of_fields(fields: Fields, *, has_recomputes: bool = True, has_maps: bool = True) -> Plan:
    """Read the fields of `plan_body`.

    Arguments:
        fields: The object that has them.
        has_recomputes: Whether recomputes are among them.
        has_maps: Whether maps are.

    Returns:
        The plan.

    Raises:
        InputError: A field is malformed.
    """
    return Plan(
        signature=fields.text("signature"),
        op_count=fields.integer("op_count", 1),
        policy=fields.text("policy"),
        machine=fields.text("machine"),
        budget_bytes=fields.integer("budget_bytes", 0),
        swaps=_swaps(fields.section("swaps")),
        footprint_bytes=fields.integer("footprint_bytes", 0),
        recomputes=_recomputes(fields.section("recomputes")) if has_recomputes else (),
        maps=_maps(fields.section("maps")) if has_maps else (),
    )


def _columns(rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[int]]:
    return {name: [int(getattr(row, name)) for row in rows] for name in names}


def _swaps(columns: Fields) -> tuple[Swap, ...]:
    cyclic = columns.integers("cyclic", None, 0, 1)
    numbers = (columns.integers(name, len(cyclic), 0) for name in _SWAP_COLUMNS)
    returns = [1] * len(cyclic)  # all did before version 4
    if "returns" in columns.values:
        returns = columns.integers("returns", len(cyclic), 0, 1)
    rows = zip(*numbers, map(bool, cyclic), map(bool, returns), strict=True)
    return tuple(Swap(*row) for row in rows)


def _maps(columns: Fields) -> tuple[Map, ...]:
    lengths = columns.integers("length", None, 1)
    op, frame_bytes = (columns.integers(name, len(lengths), 0) for name in _MAP_COLUMNS)
    storages = columns.integers("storages", sum(lengths), 0)
    bounds = pairwise(accumulate(lengths, initial=0))
    rows = zip(op, bounds, frame_bytes, strict=True)
    return tuple(Map(o, tuple(storages[begin:end]), frames) for o, (begin, end), frames in rows)


def _recomputes(columns: Fields) -> tuple[Recompute, ...]:
    lengths = columns.integers("length", None, 1)
    storage, after, before = (columns.integers(name, len(lengths), 0) for name in _RECOMPUTE_COLUMNS)
    ops = columns.integers("ops", sum(lengths), 0)
    bounds = pairwise(accumulate(lengths, initial=0))
    returns = [1] * len(lengths)
    if "returns" in columns.values:
        returns = columns.integers("returns", len(lengths), 0, 1)
    rows = zip(storage, after, before, bounds, map(bool, returns), strict=True)
    return tuple(Recompute(s, a, b, tuple(ops[begin:end]), back) for s, a, b, (begin, end), back in rows)

"""Machine <-> file, and the machine a name or a path means."""

from __future__ import annotations

import os
from typing import Any

from memfit.errors import InputError
from memfit.files.document import Fields, read_document, write_document
from memfit.machine import Link, Machine, profile, profile_names

_KIND = "machine"
_VERSION = 1


def save_machine(machine: Machine, path: str | os.PathLike[str]) -> None:
    """Write `machine` to `path`; raises InputError if it cannot be written."""
    body = {
        "name": machine.name,
        "capacity_bytes": machine.capacity_bytes,
        "alignment": machine.alignment,
        "both_factor": machine.both_factor,
        "loaded_factor": machine.loaded_factor,
        "memory_bytes_per_s": machine.memory_bytes_per_s,
        "out": _link_body(machine.out),
        "into": _link_body(machine.into),
    }
    write_document(path, _KIND, _VERSION, body)


def load_machine(path: str | os.PathLike[str]) -> Machine:
    """Read the machine in `path`. Raises InputError naming the file and what is wrong."""
    fields = read_document(path, _KIND, _VERSION)
    try:
        return Machine(
            name=fields.text("name"),
            out=_link(fields.section("out")),
            into=_link(fields.section("into")),
            both_factor=fields.number("both_factor"),
            capacity_bytes=fields.integer("capacity_bytes", 0),
            alignment=fields.integer("alignment", 1),
            loaded_factor=fields.number("loaded_factor", 1.0),
            memory_bytes_per_s=fields.number("memory_bytes_per_s", 0.0),
        )
    except InputError as error:
        if str(path) in error.what:
            raise
        raise InputError(f"{path}: {error.what}", why=error.why, remedy=error.remedy) from error


def find_machine(text: str) -> Machine:
    """Return the machine that `text` means, to plan for: a profile's name, or else a file's path."""
    if text in profile_names() or not os.path.exists(text):
        return profile(text)
    return load_machine(text).under_load()


def _link_body(link: Link) -> dict[str, Any]:
    return {"size_bytes": list(link.size_bytes), "time_us": list(link.time_us)}


def _link(fields: Fields) -> Link:
    sizes = fields.integers("size_bytes", None, 0)
    return Link(tuple(sizes), tuple(fields.durations("time_us", len(sizes))))

"""Machine <-> file, and the machine a name or a path means."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from memfit.errors import InputError
from memfit.files.document import Fields, read_document, write_document
from memfit.machine import Faults, Link, Machine, profile, profile_names

_KIND = "machine"
_VERSION = 1


def save_machine(machine: Machine, path: str | os.PathLike[str]) -> None:
    """Write a machine to a file.

    Arguments:
        machine: The machine.
        path: The file; it appears whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    write_document(path, _KIND, _VERSION, machine_body(machine))


def machine_body(machine: Machine) -> dict[str, Any]:
    """Return the fields of a machine, as they are in its file.

    Arguments:
        machine: The machine.

    Returns:
        Plain data.
    """
    faults = {} if machine.faults is None else {"faults": _faults_body(machine.faults)}
    return {
        "name": machine.name,
        "capacity_bytes": machine.capacity_bytes,
        "alignment": machine.alignment,
        "both_factor": machine.both_factor,
        "loaded_factor": machine.loaded_factor,
        "memory_bytes_per_s": machine.memory_bytes_per_s,
        "out": _link_body(machine.out),
        "into": _link_body(machine.into),
        **faults,
    }


def load_machine(path: str | os.PathLike[str]) -> Machine:
    """Read a machine from a file.

    Arguments:
        path: A file of `save_machine` or `memfit doctor`.

    Returns:
        The machine.

    Raises:
        InputError: The file is malformed. The message names the file, the field and the reason.
    """
    fields = read_document(path, _KIND, _VERSION)
    try:
        return machine_of_fields(fields)
    except InputError as error:
        if str(path) in error.what:
            raise
        raise InputError(f"{path}: {error.what}", why=error.why, remedy=error.remedy) from error


def machine_of_fields(fields: Fields) -> Machine:
    """Read the fields of `machine_body`.

    Arguments:
        fields: The object that has them.

    Returns:
        The machine.

    Raises:
        InputError: A field is malformed.
    """
    return Machine(
        name=fields.text("name"),
        out=_link(fields.section("out")),
        into=_link(fields.section("into")),
        both_factor=fields.number("both_factor"),
        capacity_bytes=fields.integer("capacity_bytes", 0),
        alignment=fields.integer("alignment", 1),
        loaded_factor=fields.number("loaded_factor", 1.0),
        memory_bytes_per_s=fields.number("memory_bytes_per_s", 0.0),
        faults=_faults(fields.section("faults")) if "faults" in fields.values else None,
    )


def find_machine(text: str) -> Machine:
    """Find the machine that a text names, as `--machine` does.

    Arguments:
        text: A profile's name, such as "pcie4", otherwise the path of a file.

    Returns:
        The machine. One from a file has the speed its links have while ops run.

    Raises:
        InputError: The file is malformed.
        UsageError: There is neither such a profile nor such a file.
    """
    if text in profile_names() or not os.path.exists(text):
        return profile(text)
    return load_machine(text).under_load()


def _link_body(link: Link) -> dict[str, Any]:
    return {"size_bytes": list(link.size_bytes), "time_us": list(link.time_us)}


def _link(fields: Fields) -> Link:
    sizes = fields.integers("size_bytes", None, 0)
    return Link(tuple(sizes), tuple(fields.durations("time_us", len(sizes))))


def _faults_body(faults: Faults) -> dict[str, Any]:
    return {name: int(value) if isinstance(value, bool) else value for name, value in asdict(faults).items()}


def _faults(fields: Fields) -> Faults:
    return Faults(
        fault_us=fields.number("fault_us"),
        chunk_bytes=fields.integer("chunk_bytes", 0),
        block_bytes=fields.integer("block_bytes", 0),
        chunks_per_fault=fields.integer("chunks_per_fault", 1),
        keeps_copies=bool(fields.integer("keeps_copies", 0, 1)),
        fresh_faults=bool(fields.integer("fresh_faults", 0, 1)),
        sweeps=fields.integer("sweeps", 1),
    )

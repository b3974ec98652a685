"""A running session's plan <-> file, as the plan cache keeps it for the next run of the same iteration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from memfit.files.document import read_document, write_document
from memfit.files.machine import machine_body, machine_of_fields
from memfit.files.plan import plan_body, plan_of_fields
from memfit.ir import Plan
from memfit.machine import Machine

_KIND = "kept-plan"
_VERSION = 3
_FIRST_WITH_MAPS = 3


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan without addresses and without anything else that holds in one process only.

    Attributes:
        key: The iteration and the circumstances that it was made for.
        plan: The plan. Its recomputes are of the iteration, its swaps of the one in which they are carried out; this
            one's signature is the plan's.
        machine: The links that it was made for.
        is_joint: Whether swapping and making again were weighed against each other.
        never: The storages that the run could not make again, and why.
    """

    key: str
    plan: Plan
    machine: Machine
    is_joint: bool
    never: Mapping[int, str] = field(default_factory=dict)


def save_kept_plan(kept: KeptPlan, path: str | os.PathLike[str]) -> None:
    """Write a kept plan to a file.

    Arguments:
        kept: The plan.
        path: The file; it appears whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    body = {
        "key": kept.key,
        "is_joint": int(kept.is_joint),
        "never": {"storage": list(kept.never), "why": list(kept.never.values())},
        "machine": machine_body(kept.machine),
        "plan": plan_body(kept.plan),
    }
    write_document(path, _KIND, _VERSION, body)


def load_kept_plan(path: str | os.PathLike[str]) -> KeptPlan:
    """Read a kept plan from a file.

    Arguments:
        path: A file of `save_kept_plan`.

    Returns:
        The plan.

    Raises:
        InputError: The file is malformed. The message names the file, the field and the reason.
    """
    fields = read_document(path, _KIND, _VERSION)
    never = fields.section("never")
    reasons = never.texts("why")
    return KeptPlan(
        key=fields.text("key"),
        plan=plan_of_fields(fields.section("plan"), has_maps=fields.integer("version", 1) >= _FIRST_WITH_MAPS),
        machine=machine_of_fields(fields.section("machine")),
        is_joint=bool(fields.integer("is_joint", 0, 1)),
        never=dict(zip(never.integers("storage", len(reasons), 0), reasons, strict=True)),
    )

"""The slower tier that swapped-out bytes go to, as the user names it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from memfit.errors import InputError, MemfitError
from memfit.messages import say_for_all
from memfit.running.engine.devices import default_tier, shares_host_memory
from memfit.running.host import host_memory_bytes, is_in_memory, reservable_bytes
from memfit.units import format_bytes, parse_bytes

_COMPRESS = ",compress"


@dataclass(frozen=True)
class TierSpec:
    """A tier: `kind` is "ram" or "disk"; `folder` is where the disk tier's file goes.

    The ram tier takes at most `capacity_bytes` (0: as much as the machine has); with a `folder` what does not fit
    goes to a file there. `checked` keeps a checksum of everything written and compares it on each read. `compress`
    makes what goes to the file smaller where that saves time.
    """

    kind: str = "disk"
    folder: str = ""
    capacity_bytes: int = 0
    checked: bool = False
    compress: bool = False

    def __str__(self) -> str:
        disk = f"disk:{self.folder}{_COMPRESS if self.compress else ''}"
        if self.kind == "disk":
            return disk
        capacity = f":{self.capacity_bytes}" if self.capacity_bytes else ""
        return f"ram{capacity}+{disk}" if self.folder else f"ram{capacity}"

    def recipe(self) -> dict[str, Any]:
        """Return the description from which the engine makes the tier."""
        capacity_bytes = self.capacity_bytes or reservable_bytes()
        return {"kind": self.kind, "folder": self.folder, "capacity_bytes": capacity_bytes, "checked": self.checked,
                "compress": self.compress}  # fmt: skip


def tier_for(named: str | TierSpec | None, device: torch.device) -> TierSpec:
    """Return the tier that is named, otherwise the device's own.

    Raises InputError as `parse_tier` does, and for a tier in the very memory of a GPU.
    """
    tier = named if isinstance(named, TierSpec) else parse_tier(default_tier(device) if named is None else named)
    if device.type == "cuda" and tier.kind == "ram" and shares_host_memory(device):
        raise InputError(
            f"tier '{tier}' is of no use on {device}",
            why="this GPU has no memory of its own: what leaves for the ram tier takes as much of the host's as before",
            remedy="--tier disk:PATH, or no --tier, which is a disk's there",
        )
    return tier


def parse_tier(text: str) -> TierSpec:
    """Read "ram", "ram:8GiB", "disk", "disk:PATH" or "ram:8GiB+disk:PATH", which is a disk behind the ram.

    "ram" alone takes as much as the machine has; "disk" alone means the folder for temporary files. ",compress" may
    follow a disk. Raises InputError for anything else, or for a folder that is not there or cannot be written.
    """
    named = text.removesuffix(_COMPRESS)
    tier = _parse_places(named, text)
    if named == text:
        return tier
    if not tier.folder:
        raise InputError(
            f"'{text}' is not a tier",
            why="only what goes to a disk is compressed: a copy in memory takes less time than compressing it",
            remedy=f"--tier {named}, or --tier {named}+disk:/tmp{_COMPRESS}",
        )
    return replace(tier, compress=True)


def _parse_places(named: str, text: str) -> TierSpec:
    first, plus, behind = named.partition("+")
    kind, _, rest = first.partition(":")
    if kind == "ram" and (not plus or behind.partition(":")[0] == "disk"):
        capacity = _capacity(text, rest) if rest else 0
        return TierSpec("ram", _folder(behind.partition(":")[2]) if plus else "", capacity)
    if kind == "disk" and (":" in first or not plus):  # a folder's name may have a plus in it
        return TierSpec("disk", _folder(named.partition(":")[2]))
    raise _no_tier(text)


def warn_if_in_memory(tier: TierSpec, device: torch.device) -> None:
    """Say so where a disk tier's folder is in the very memory that the budget is to save."""
    if shares_host_memory(device) and tier.kind == "disk" and is_in_memory(tier.folder):
        say_for_all(
            f"memfit: warning: the disk tier's folder '{tier.folder}' is in memory (tmpfs), so what leaves the arena "
            "still takes memory; name a folder on a disk: --tier disk:PATH"
        )


def _no_tier(text: str) -> InputError:
    why = f"a tier is ram, ram:BYTES, disk, disk:PATH or ram:BYTES+disk:PATH; {_COMPRESS} may follow a disk"
    return InputError(f"'{text}' is not a tier", why=why, remedy="--tier disk:/tmp")


def _capacity(text: str, size: str) -> int:
    try:
        capacity = parse_bytes(size)
    except MemfitError as error:
        raise _no_tier(text) from error
    most = host_memory_bytes()
    if not 0 < capacity <= most:
        raise InputError(f"the ram tier cannot have {size}", why=f"this machine has {format_bytes(most)}",
                         remedy="--tier ram")  # fmt: skip
    return capacity


def _folder(folder: str) -> str:
    folder = folder or tempfile.gettempdir()
    if not Path(folder).is_dir():
        raise InputError(f"the disk tier's folder '{folder}' does not exist", remedy=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"the disk tier's folder '{folder}' cannot be written", remedy="name another: --tier disk:PATH"
        )
    return folder

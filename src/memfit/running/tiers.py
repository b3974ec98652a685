"""Which slower tier swapped-out bytes go to, as the user names it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memfit.errors import InputError


@dataclass(frozen=True)
class TierSpec:
    """A tier: `kind` is "ram" or "disk"; `folder` is where the disk tier's file goes.

    `checked` keeps a checksum of everything written and compares it on each read. The `fail_*` and
    `corrupt_read` fields make the n-th copy go wrong (0: none), for tests of what happens then. The `link_*` fields
    slow every copy down to what such a link would do (0: as fast as the tier is), each way by itself; from copy number
    `link_changes_at` on (0: never) it has `link_change` times its speed.
    """

    kind: str = "disk"
    folder: str = ""
    checked: bool = False
    fail_write: int = 0
    fail_read: int = 0
    corrupt_read: int = 0
    repeat: bool = False
    link_bytes_per_second: float = 0.0
    link_latency_seconds: float = 0.0
    link_changes_at: int = 0
    link_change: float = 1.0

    def __str__(self) -> str:
        return f"disk:{self.folder}" if self.kind == "disk" else self.kind


def parse_tier(text: str) -> TierSpec:
    """Read "ram", "disk" or "disk:PATH"; "disk" alone means the folder for temporary files.

    Raises InputError for anything else, or for a folder that is not there or cannot be written.
    """
    kind, _, folder = text.partition(":")
    if kind == "ram" and not folder:
        return TierSpec("ram")
    if kind != "disk":
        raise InputError(f"'{text}' is not a tier", why="a tier is ram, disk or disk:PATH", remedy="--tier disk:/tmp")
    folder = folder or tempfile.gettempdir()
    if not Path(folder).is_dir():
        raise InputError(f"the disk tier's folder '{folder}' is not there", remedy=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"the disk tier's folder '{folder}' cannot be written", remedy="name another: --tier disk:PATH"
        )
    return TierSpec("disk", folder)

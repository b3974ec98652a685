"""Answers on disk: of which calls it was tried whether slices give the same bits, for other sessions on this machine.

A file's name is a hash of what bits depend on beside the call: torch, the processor and the number of threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from memfit._version import __version__
from memfit.errors import MemfitError
from memfit.files.document import write_text
from memfit.running.engine.module import EngineModule, SplitAnswer
from memfit.running.engine.plans import plans_folder

_FORMAT = 7  # of the rules and of the answers: another number makes every kept one unknown


@dataclass
class KeptSplits:
    """The answers kept in `path`, for one session."""

    path: Path
    _told: int = 0  # how many the engine knew at its beginning

    @classmethod
    def of_this_machine(cls) -> KeptSplits | None:
        """Return those of this torch, processor and number of threads; None if nothing is kept for later runs."""
        folder = plans_folder()
        if folder is None:
            return None
        about = (_FORMAT, __version__, torch.__version__, _processor(), torch.get_num_threads(), _choices())
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
        return cls(folder / f"{name}.splits.json")

    def tell(self, engine: EngineModule) -> None:
        """Let the engine know them, beside what this process has tried itself."""
        engine.know_splits(self._beside(engine.split_answers()))
        self._told = len(engine.split_answers())

    def keep(self, engine: EngineModule) -> None:
        """Write what the engine knows now, if anything has been tried since it was told."""
        rows = engine.split_answers()
        if len(rows) == self._told:
            return
        with contextlib.suppress(MemfitError, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_text(self.path, json.dumps(self._beside(rows)))

    def _beside(self, rows: list[SplitAnswer]) -> list[SplitAnswer]:
        """Return `rows`, and what the file has beside them."""
        known = {row[1] for row in rows}
        with contextlib.suppress(OSError, ValueError, TypeError, AssertionError):
            kept = [_answer(row) for row in json.loads(self.path.read_text())]
            return [*rows, *(row for row in kept if row[1] not in known)]
        return rows


def _answer(row: list[object]) -> SplitAnswer:
    op, key, workspace, allocated, outputs, equal = row
    assert isinstance(op, str) and isinstance(key, int) and isinstance(workspace, int)
    assert isinstance(allocated, int)
    assert isinstance(outputs, list) and isinstance(equal, list)
    return (
        op,
        key,
        workspace,
        allocated,
        [(dtype, list(sizes), list(strides)) for dtype, sizes, strides in outputs],
        [(way, steps) for way, steps in equal],
    )


def _choices() -> list[object]:
    """Return what has libraries choose other kernels on the same processor."""
    named = ("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_CPU_")
    return [
        torch.backends.cpu.get_cpu_capability(),
        *sorted(item for item in os.environ.items() if item[0].startswith(named)),
    ]


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

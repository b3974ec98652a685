"""Answers on disk: what was tried of calls, for other sessions on this machine.

A file's name is a hash of what bits depend on beside the call: torch, the processor, the GPU and the number of threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from memfit._version import __version__
from memfit.errors import MemfitError
from memfit.files.document import write_text
from memfit.running.engine.module import EngineModule
from memfit.running.engine.plans import ANSWERS, plans_folder

Row = TypeVar("Row", bound=tuple[Any, ...])

_FORMAT = 10  # of the rules and of all answers: another number makes every kept one unknown


class KeptAnswers(ABC, Generic[Row]):
    """The answers of one kind that are kept in `path`, for one session.

    A row's first two fields are the question: what was tried, and the key of the call.
    """

    kind: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = 0  # how many the engine knew at the session's beginning

    @classmethod
    def of_this_machine(cls, device: torch.device) -> Self | None:
        """Return those of this torch, device and number of threads; None if nothing is kept for later runs."""
        folder = plans_folder()
        if folder is None:
            return None
        about = (_FORMAT, __version__, torch.__version__, _processor(), torch.get_num_threads(), _choices(device))
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
        return cls(folder / f"{name}.{cls.kind}{ANSWERS}")

    @abstractmethod
    def known(self, engine: EngineModule) -> list[Row]:
        """Return the answers that the engine has."""

    @abstractmethod
    def know(self, engine: EngineModule, rows: list[Row]) -> None:
        """Let the engine have these beside its own."""

    @abstractmethod
    def checked(self, row: list[object]) -> Row:
        """Return a row of the file. Raises AssertionError, TypeError or ValueError if it is none."""

    def tell(self, engine: EngineModule) -> None:
        """Let the engine know them, beside what this process has tried itself."""
        self.know(engine, self._beside(self.known(engine)))
        self._told = len(self.known(engine))

    def keep(self, engine: EngineModule) -> None:
        """Write what the engine knows now, if anything has been tried since it was told."""
        rows = self.known(engine)
        if len(rows) == self._told:
            return
        with contextlib.suppress(MemfitError, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_text(self.path, json.dumps(self._beside(rows)))

    def _beside(self, rows: list[Row]) -> list[Row]:
        """Return `rows`, and what the file has beside them."""
        known = {row[:2] for row in rows}
        with contextlib.suppress(OSError, ValueError, TypeError, AssertionError):
            kept = [self.checked(row) for row in json.loads(self.path.read_text())]
            return [*rows, *(row for row in kept if row[:2] not in known)]
        return rows


def is_key(value: object) -> bool:
    """Return whether the engine could have given a call this key: 64 bits."""
    return isinstance(value, int) and 0 <= value < 2**64


def _choices(device: torch.device) -> list[object]:
    """Return what has libraries choose other kernels on the same processor."""
    named = ("MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_CPU_", "CUBLAS", "NVIDIA_TF32")
    of_the_gpu = (torch.cuda.get_device_name(device), torch.version.cuda) if device.type == "cuda" else ()
    return [
        torch.backends.cpu.get_cpu_capability(),
        *of_the_gpu,
        *sorted(item for item in os.environ.items() if item[0].startswith(named)),
    ]


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

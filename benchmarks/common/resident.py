"""The system's own count of what a session has in memory: pages of its arena, and of its page frames."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from memfit.running import engine

_COUNTER = Path(__file__).with_name("count_pages.py")


class Resident:
    """Has its process's pages counted again and again, as long as `watching` lasts.

    The process stands still meanwhile, so that nothing is counted at two places: it must not be the job of a shell.
    """

    def __init__(self, every_s: float = 0.02) -> None:
        self._every_s = every_s
        self.peak_bytes = self.peak_frame_bytes = 0
        self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[Resident]:
        """Count while this lasts; a session is active, and has a budget in bytes."""
        kept = torch.ones(1)  # it stays on the arena's shelf, since its address is known
        size = engine.load().stats()["budget_bytes"]
        words = map(str, (_COUNTER, os.getpid(), kept.data_ptr(), size, self._every_s))
        command = [sys.executable, "-I", *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as counter:
            assert counter.stdin is not None and counter.stdout is not None
            thread = threading.Thread(target=self._take_in, args=(counter.stdout,))
            thread.start()
            try:
                yield self
            finally:
                counter.stdin.close()
                thread.join()
                del kept

    def _take_in(self, lines: Iterator[str]) -> None:
        for line in lines:
            arena, frames = map(int, line.split())
            self.peak_bytes = max(self.peak_bytes, arena + frames)
            self.peak_frame_bytes = max(self.peak_frame_bytes, frames)
            self.looks += 1

"""The system's own count of what a session has in memory: pages of its arena, and of its page frames, by mincore."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

_LIBC = ctypes.CDLL(None, use_errno=True)

_COUNTS = 4


class Resident:
    """Looks at a session's pages again and again from a thread of its own, as long as `watching` lasts."""

    def __init__(self, every_s: float = 0.02) -> None:
        self._every_s = every_s
        self.peak_bytes = self.peak_frame_bytes = 0
        self.looks = 0
        self._arena = 0

    @contextmanager
    def watching(self) -> Iterator[Resident]:
        """Count while this lasts; a session is active."""
        kept = torch.ones(1)  # it stays on the arena's shelf, since its address is known
        self._arena = kept.data_ptr()
        done = threading.Event()
        thread = threading.Thread(target=self._look_until, args=(done,))
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()
            del kept

    def _look_until(self, done: threading.Event) -> None:
        while not done.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Count some times and take the least: what comes and goes meanwhile may be counted at both its places."""
        arena, frames = min((self._count_once() for _ in range(_COUNTS)), key=sum)
        self.peak_bytes = max(self.peak_bytes, arena + frames)
        self.peak_frame_bytes = max(self.peak_frame_bytes, frames)
        self.looks += 1

    def _count_once(self) -> tuple[int, int]:
        areas = _areas(self._arena)
        before, arena, after = (_count(some) for some in (areas[1:], areas[:1], areas[1:]))
        return arena, min(before, after)  # frames come and go while the arena is looked at


def _areas(inside: int) -> list[tuple[int, int]]:
    """Return the addresses of the mapping around `inside`, and those of each one that page frames are seen through."""
    arena, frames, area = (0, 0), [], (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            begin, _, end = head.partition("-")
            area = int(begin, 16), int(end, 16)
            if area[0] <= inside < area[1]:
                arena = area
            if "/memfd:memfit" in rest:
                frames.append(area)
        elif head == "VmFlags:" and "um" in rest.split():
            frames.append(area)
    return [arena, *frames]


def _count(areas: list[tuple[int, int]]) -> int:
    """Return the bytes that are in memory; of an area that has gone meanwhile, none."""
    found = 0
    for begin, end in areas:
        pages = np.zeros((end - begin) // mmap.PAGESIZE, np.uint8)
        if _LIBC.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_void_p(pages.ctypes.data)) == 0:
            found += mmap.PAGESIZE * int((pages & 1).sum())
    return found
